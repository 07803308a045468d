#include "backend/cpu/ops_ref.h"

const lt_cpu_row lt__cpu_rows_ref[] = {
    {.op = LT_OP_LINEAR, .run = lt__ref_linear},
    {.op = LT_OP_QUANTIZE, .run = lt__ref_quantize},
    {.op = LT_OP_RMS_NORM, .run = lt__ref_rms_norm},
    {.op = LT_OP_ROPE, .run = lt__ref_rope},
    {.op = LT_OP_KV_STORE, .run = lt__ref_kv_store},
    {.op = LT_OP_ATTENTION, .run = lt__ref_attention},
    {.op = LT_OP_ADD, .run = lt__ref_add},
    {.op = LT_OP_ADD_ROW, .run = lt__ref_add_row},
    {.op = LT_OP_SILU_MUL, .run = lt__ref_silu_mul},
    {.op = LT_OP_GELU_MUL, .run = lt__ref_gelu_mul},
    {.op = LT_OP_SCALE, .run = lt__ref_scale},
    {.op = LT_OP_SOFTCAP, .run = lt__ref_softcap},
    {.op = LT_OP_TAKE_ROWS, .run = lt__ref_take_rows},
    {.op = LT_OP_TOP_K, .run = lt__ref_top_k},
    {.op = LT_OP_TOP_SHARE, .run = lt__ref_top_share},
    {.op = LT_OP_EXPERT_LINEAR, .run = lt__ref_expert_linear},
    {.op = LT_OP_EXPERT_BIAS, .run = lt__ref_expert_bias},
    {.op = LT_OP_EXPERT_SUM, .run = lt__ref_expert_sum},
    {.op = LT_OP_CLAMP_MUL, .run = lt__ref_clamp_mul},
};
const size_t lt__cpu_rows_ref_n = sizeof lt__cpu_rows_ref / sizeof *lt__cpu_rows_ref;

_Static_assert(sizeof lt__cpu_rows_ref / sizeof *lt__cpu_rows_ref == LT_OP_COUNT, "a reference for every op");
