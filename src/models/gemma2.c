#include "base/mem.h"
#include "models/blocks.h"
#include "models/rows.h"

/* docs/models/gemma2.md */

static const lt_hparam_row hparams[] = {
    LT__HPARAMS_COMMON,
    {"rope.freq_base", LT__HP(rope[0].base), 'd', false, 10000, 1, 1e12},
    {"attention.sliding_window", LT__HP(window), 'u', false, 4096, 0, 1 << 30},
    {"attn_logit_softcapping", LT__HP(attn_cap), 'f', false, 50, 0, 1e6},
    {"final_logit_softcapping", LT__HP(logit_cap), 'f', false, 30, 0, 1e6},
};

static const lt_tensor_row tensors[] = {
    LT__ROWS_ENDS,
    LT__ROWS_ATTENTION,
    {"blk.%u.post_attention_norm.weight", "embd", NULL, LT_ROW_F32},
    LT__ROWS_FFN,
    {"blk.%u.post_ffw_norm.weight", "embd", NULL, LT_ROW_F32},
};

static lt_status derive(struct lt_model *m, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    lt_status s = lt__gemma_derive(m, 46, err);
    if (s != LT_OK)
        return s;
    hp->window_every = 2; /* a windowed layer, then a global one */
    return LT_OK;
}

const lt_arch lt__arch_gemma2 = {
    "gemma2", "Gemma 2",
    hparams, LT__COUNT(hparams), tensors, LT__COUNT(tensors), derive, lt__gemma_build, false,
};
