#include "base/mem.h"
#include "models/blocks.h"
#include "models/rows.h"

#include <math.h>

/* docs/models/phi3.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
    {"attention.sliding_window", LT__HP(window), 'u', false, 0, 0, 1 << 30},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    {"rope_factors_long.weight", "rotated/2", NULL, LT_ROW_F32 | LT_ROW_HOST | LT_ROW_OPTIONAL},
    {"rope_factors_short.weight", "rotated/2", NULL, LT_ROW_F32 | LT_ROW_HOST | LT_ROW_OPTIONAL},
    {"blk.%u.attn_norm.weight", "embd", NULL, LT_ROW_F32},
    {"blk.%u.attn_qkv.weight", "heads*head_dim+2*kv_heads*head_dim", "embd", 0},
    {"blk.%u.attn_output.weight", "embd", "heads*head_dim", 0},
    {"blk.%u.ffn_norm.weight", "embd", NULL, LT_ROW_F32},
    {"blk.%u.ffn_up.weight", "2*ff", "embd", 0},
    {"blk.%u.ffn_down.weight", "embd", "ff", 0},
};

static lt_status derive(struct lt_model *m, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    lt_status s = lt__derive_common(m, LT_ROPE_HALVES, err);
    if (s != LT_OK)
        return s;
    lt_rope_set *r = &hp->rope[0];
    bool factors = lt_modelfile_tensor(m->file, "rope_factors_long.weight") ||
                   lt_modelfile_key(m->file, "lowtide.rope.factors_long");
    if (factors) {
        double grown = (double)hp->context / r->original_context, magnitude = 1;
        if (grown > 1 && r->original_context > 1)
            magnitude = sqrt(1 + log(grown) / log((double)r->original_context));
        if ((s = lt__rows_f64(m, "rope.scaling.attn_factor", 1e-3, 1e3, &magnitude, err)) != LT_OK)
            return s;
        r->magnitude = magnitude;
    }
    return LT_OK;
}

static void build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g)
{
    const lt_hparams *hp = &m->hp;
    uint64_t q_cols = (uint64_t)hp->heads * hp->head_dim, kv_cols = (uint64_t)hp->kv_heads * hp->head_dim;
    lt__blocks b;
    lt__blocks_begin(&b, m, kv, g);
    for (uint32_t l = 0; l < hp->layers; l++) {
        lt__block_layer(&b, l);
        lt__act x = lt__block_norm(&b, b.h, "attn_norm");
        lt_tid qkv = lt__block_linear(&b, &x, "attn_qkv");
        lt__act o = lt__block_attention(&b, lt__block_heads(&b, qkv, 0, hp->heads),
                                        lt__block_heads(&b, qkv, q_cols, hp->kv_heads),
                                        lt__block_heads(&b, qkv, q_cols + kv_cols, hp->kv_heads));
        lt__block_add(&b, "attn_residual", lt__block_linear(&b, &o, "attn_output"));

        x = lt__block_norm(&b, b.h, "ffn_norm");
        lt_tid gate_up = lt__block_linear(&b, &x, "ffn_up");
        lt__act y = lt__block_gated(&b, LT_OP_SILU_MUL, lt__block_columns(&b, gate_up, 0, hp->ff),
                                    lt__block_columns(&b, gate_up, hp->ff, hp->ff));
        lt__block_add(&b, "ffn_residual", lt__block_linear(&b, &y, "ffn_down"));
    }
    lt__blocks_head(&b);
}

const lt_arch lt__arch_phi3 = {
    "phi3", "Phi 3, 3.5 and 4 mini",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, build, false,
};
