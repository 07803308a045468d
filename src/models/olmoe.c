#include "models/blocks.h"
#include "models/rows.h"

/* docs/models/experts.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    LT__HPARAMS_EXPERTS(true, 1),
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    LT__ROWS_ATTENTION,
    {"blk.%u.attn_q_norm.weight", "heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_k_norm.weight", "kv_heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.ffn_norm.weight", "embd", NULL, LT_ROW_F32},
    LT__ROWS_EXPERTS,
};

static lt_status derive(struct lt_model *m, lt_err *err) { return lt__derive_common(m, LT_ROPE_HALVES, err); }

const lt_arch lt__arch_olmoe = {
    "olmoe", "OLMoE",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, lt__usual_build, true,
};
