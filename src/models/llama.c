#include "models/blocks.h"
#include "models/rows.h"

/* docs/models/llama.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    LT__HPARAMS_EXPERTS(false, 0),
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
    {"attention.sliding_window", LT__HP(window), 'u', false, 0, 0, 1 << 30},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    {"rope_freqs.weight", "rotated/2", NULL, LT_ROW_F32 | LT_ROW_HOST | LT_ROW_OPTIONAL},
    LT__ROWS_ATTENTION,
    {"blk.%u.attn_q.bias", "heads*head_dim", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL},
    {"blk.%u.attn_k.bias", "kv_heads*head_dim", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL},
    {"blk.%u.attn_v.bias", "kv_heads*head_dim", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL},
    {"blk.%u.attn_output.bias", "embd", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL},
    {"blk.%u.ffn_norm.weight", "embd", NULL, LT_ROW_F32},
    {"blk.%u.ffn_gate.weight", "ff", "embd", LT_ROW_DENSE},
    {"blk.%u.ffn_up.weight", "ff", "embd", LT_ROW_DENSE},
    {"blk.%u.ffn_down.weight", "embd", "ff", LT_ROW_DENSE},
    {"blk.%u.ffn_gate.bias", "ff", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL | LT_ROW_DENSE},
    {"blk.%u.ffn_up.bias", "ff", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL | LT_ROW_DENSE},
    {"blk.%u.ffn_down.bias", "embd", NULL, LT_ROW_F32 | LT_ROW_OPTIONAL | LT_ROW_DENSE},
    LT__ROWS_EXPERTS,
};

static lt_status derive(struct lt_model *m, lt_err *err) { return lt__derive_common(m, LT_ROPE_PAIRS, err); }

const lt_arch lt__arch_llama = {
    "llama", "Llama 2 and 3, Mistral, Mixtral, SmolLM2 and others of that shape",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, lt__usual_build, false,
};
