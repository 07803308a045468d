/* rows.h - rows that most architectures have in common. */
#ifndef LT_MODELS_ROWS_H
#define LT_MODELS_ROWS_H

#include "models/arch.h"

#define LT__HP(field) offsetof(lt_hparams, field)

/* head_dim 0 and kv_heads 0 mean: not said; derive fills them in. */
#define LT__HPARAMS_COMMON                                                                       \
    {"block_count", LT__HP(layers), 'u', true, 0, 1, 4096},                                      \
    {"context_length", LT__HP(context), 'u', true, 0, 1, 1 << 30},                               \
    {"embedding_length", LT__HP(embd), 'u', true, 0, 1, 1 << 20},                                \
    {"feed_forward_length", LT__HP(ff), 'u', true, 0, 1, 1 << 22},                               \
    {"attention.head_count", LT__HP(heads), 'u', true, 0, 1, 4096},                              \
    {"attention.head_count_kv", LT__HP(kv_heads), 'u', false, 0, 1, 4096},                       \
    {"attention.key_length", LT__HP(head_dim), 'u', false, 0, 2, 4096},                          \
    {"attention.layer_norm_rms_epsilon", LT__HP(norm_eps), 'f', true, 0, 0, 1}

#define LT__HPARAMS_EXPERTS(required, least)                                                     \
    {"expert_count", LT__HP(experts), 'u', required, 0, least, 4096},                            \
    {"expert_used_count", LT__HP(experts_used), 'u', required, 0, least, 4096}

#define LT__ROWS_ENDS                                                                            \
    {"token_embd.weight", "vocab", "embd", LT_ROW_HOST},                                         \
    {"output_norm.weight", "embd", NULL, LT_ROW_F32},                                            \
    {"output.weight", "vocab", "embd", LT_ROW_TIED}

#define LT__ROWS_ATTENTION                                                                       \
    {"blk.%u.attn_norm.weight", "embd", NULL, LT_ROW_F32},                                       \
    {"blk.%u.attn_q.weight", "heads*head_dim", "embd", 0},                                       \
    {"blk.%u.attn_k.weight", "kv_heads*head_dim", "embd", 0},                                    \
    {"blk.%u.attn_v.weight", "kv_heads*head_dim", "embd", 0},                                    \
    {"blk.%u.attn_output.weight", "embd", "heads*head_dim", 0}

#define LT__ROWS_FFN                                                                             \
    {"blk.%u.ffn_norm.weight", "embd", NULL, LT_ROW_F32},                                        \
    {"blk.%u.ffn_gate.weight", "ff", "embd", 0},                                                 \
    {"blk.%u.ffn_up.weight", "ff", "embd", 0},                                                   \
    {"blk.%u.ffn_down.weight", "embd", "ff", 0}

#define LT__ROWS_EXPERTS                                                                         \
    {"blk.%u.ffn_gate_inp.weight", "experts", "embd", LT_ROW_EXPERTS},                           \
    {"blk.%u.ffn_gate_exps.weight", "expert_ff", "embd", LT_ROW_EXPERTS | LT_ROW_EACH},         \
    {"blk.%u.ffn_up_exps.weight", "expert_ff", "embd", LT_ROW_EXPERTS | LT_ROW_EACH},           \
    {"blk.%u.ffn_down_exps.weight", "embd", "expert_ff", LT_ROW_EXPERTS | LT_ROW_EACH}

#define LT__COUNT(a) (sizeof(a) / sizeof *(a))

#endif
