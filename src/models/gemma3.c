#include "base/mem.h"
#include "models/blocks.h"
#include "models/rows.h"

#include <string.h>

/* docs/models/gemma3.md */

#define GEMMA3_PATTERN 6 /* five windowed layers, then a global one */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 1e6, 1, 1e12},
    {"rope.local.freq_base", LT__HP(rope[1].base), 'd', false, 10000, 1, 1e12},
    {"attention.sliding_window", LT__HP(window), 'u', false, 0, 0, 1 << 30},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    LT__ROWS_ATTENTION,
    {"blk.%u.attn_q_norm.weight", "head_dim", NULL, LT_ROW_F32},
    {"blk.%u.attn_k_norm.weight", "head_dim", NULL, LT_ROW_F32},
    {"blk.%u.post_attention_norm.weight", "embd", NULL, LT_ROW_F32},
    LT__ROWS_FFN,
    {"blk.%u.post_ffw_norm.weight", "embd", NULL, LT_ROW_F32},
};

static lt_status derive(struct lt_model *m, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    lt_status s = lt__gemma_derive(m, 62, err);
    if (s != LT_OK)
        return s;
    if (hp->window) {
        hp->window_every = GEMMA3_PATTERN;
        double base = hp->rope[1].base;
        if ((s = lt__rows_u32(m, "attention.sliding_window_pattern", 2, 4096, &hp->window_every, err)) != LT_OK)
            return s;
        if ((s = lt__rows_f64(m, "rope.freq_base_swa", 1, 1e12, &base, err)) != LT_OK)
            return s;
        hp->rope[1] = (lt_rope_set){.base = base, .rotated = hp->rope[0].rotated, .factor = 1, .magnitude = 1};
        hp->rope_sets = 2;
    }
    return LT_OK;
}

const lt_arch lt__arch_gemma3 = {
    "gemma3", "Gemma 3, text",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, lt__gemma_build, false,
};
