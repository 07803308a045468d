#include "base/mem.h"
#include "models/blocks.h"
#include "models/rows.h"

/* docs/models/gpt-oss.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    LT__HPARAMS_EXPERTS(true, 1),
    {"expert_feed_forward_length", LT__HP(expert_ff), 'u', true, 0, 1, 1 << 22},
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
    {"attention.sliding_window", LT__HP(window), 'u', true, 0, 0, 1 << 30},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    LT__ROWS_ATTENTION,
    {"blk.%u.attn_q.bias", "heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_k.bias", "kv_heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_v.bias", "kv_heads*head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_output.bias", "embd", NULL, LT_ROW_F32},
    {"blk.%u.attn_sinks.weight", "heads", NULL, LT_ROW_F32},
    {"blk.%u.post_attention_norm.weight", "embd", NULL, LT_ROW_F32}, /* that of the feed-forward unit, for all its name */
    LT__ROWS_EXPERTS,
    {"blk.%u.ffn_gate_inp.bias", "experts", NULL, LT_ROW_F32},
    {"blk.%u.ffn_gate_exps.bias", "experts", "expert_ff", LT_ROW_F32},
    {"blk.%u.ffn_up_exps.bias", "experts", "expert_ff", LT_ROW_F32},
    {"blk.%u.ffn_down_exps.bias", "experts", "embd", LT_ROW_F32},
};

static lt_status derive(struct lt_model *m, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    lt_status s = lt__derive_common(m, LT_ROPE_HALVES, err);
    double local = hp->rope[0].base;
    hp->rope[0].ramp_exact = true; /* as the vendor's own code; no key says so */
    hp->window_every = 2;          /* a windowed layer, then a global one */
    if (s == LT_OK)
        s = lt__rows_u32(m, "attention.sliding_window_pattern", 2, 4096, &hp->window_every, err);
    if (s == LT_OK)
        s = lt__rows_f64(m, "rope.freq_base_swa", 1, 1e12, &local, err);
    if (s == LT_OK && local != hp->rope[0].base)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: key 'gpt-oss.rope.freq_base_swa' is %g, expected none or that of all layers, %g",
                        lt__model_path(m), local, hp->rope[0].base);
    return s;
}

static void build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g)
{
    static const lt_op_params unit = {.CLAMP_MUL = {.alpha = 1.702f, .limit = 7}}; /* constants of the vendor's code */
    lt__blocks b;
    lt__blocks_begin(&b, m, kv, g);
    for (uint32_t l = 0; l < m->hp.layers; l++) {
        lt__block_layer(&b, l);
        lt__block_add(&b, "attn_residual", lt__block_self_attention(&b));
        lt__block_add(&b, "ffn_residual", lt__block_experts(&b, "post_attention_norm", LT_OP_CLAMP_MUL, &unit));
    }
    lt__blocks_head(&b);
}

const lt_arch lt__arch_gpt_oss = {
    "gpt-oss", "gpt-oss",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, build, false,
};
