#include "models/blocks.h"
#include "models/rows.h"

/* docs/models/qwen.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    LT__ROWS_ATTENTION,
    {"blk.%u.attn_q.bias", "heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_k.bias", "kv_heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_v.bias", "kv_heads*head_dim", NULL, LT_ROW_F32},
    LT__ROWS_FFN,
};

static lt_status derive(struct lt_model *m, lt_err *err) { return lt__derive_common(m, LT_ROPE_HALVES, err); }

const lt_arch lt__arch_qwen2 = {
    "qwen2", "Qwen 2 and 2.5, dense",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, lt__usual_build, false,
};
