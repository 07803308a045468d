/* op.h - the ops: one list, their parameters, and the arguments of a launch. */
#ifndef LT_GRAPH_OP_H
#define LT_GRAPH_OP_H

#include "lowtide/device.h"
#include "lowtide/dtype.h"

#define LT_OP_MAX_SRC 6
#define LT_MAX_DIMS 4

typedef enum lt_op {
#define LT_OP(name, nsrc, params, text) LT_OP_##name,
#include "graph/ops.def"
#undef LT_OP
    LT_OP_COUNT
} lt_op;

/* A typed, strided window of device memory. dim[0] is the outermost; the innermost
 * dimension is contiguous. stride[i] is the byte distance along dim[i]; for block
 * dtypes stride[ndim-1] is the bytes of one block and dim counts elements. */
typedef struct lt_view {
    lt_addr  addr;
    lt_dtype dtype;
    uint32_t ndim;
    int64_t  dim[LT_MAX_DIMS];
    int64_t  stride[LT_MAX_DIMS];
} lt_view;

typedef struct lt_none_params { int32_t unused; } lt_none_params;
typedef struct lt_linear_params { int32_t unused; } lt_linear_params;
typedef struct lt_norm_params { float eps; } lt_norm_params;
typedef enum lt_rope_style {
    LT_ROPE_PAIRS, /* rotates (0,1), (2,3), ... : llama GGUF files, permuted for it */
    LT_ROPE_HALVES /* rotates (i, i + n/2): qwen, gemma, phi; safetensors of all */
} lt_rope_style;
typedef struct lt_rope_params { lt_rope_style style; uint32_t rotated; /* elements of a head */ } lt_rope_params;
typedef struct lt_scale_params { float factor; } lt_scale_params;
typedef struct lt_softcap_params { float cap; /* above 0 */ } lt_softcap_params;
typedef struct lt_top_params { uint32_t k; } lt_top_params;
typedef struct lt_share_params { bool all; } lt_share_params;
typedef struct lt_expert_params { uint32_t first; /* expert of src1's first matrix */ } lt_expert_params;
typedef struct lt_clamp_params { float alpha, limit; /* above 0 */ } lt_clamp_params;

/* Paged KV: see docs/arithmetic.md. A page holds LT_KV_PAGE positions of one layer group:
 * address of K row (page p, kv head h, position i in the page) =
 *   cache.addr + p * page_bytes + k_offset + (h * LT_KV_PAGE + i) * row_bytes(kv dtype, head_dim)
 * and likewise V with v_offset. Position pos lies in page table[(pos / LT_KV_PAGE) % table entries]. */
#define LT_KV_PAGE 256
#define LT_HEAD_DIM_MAX 1024
typedef struct lt_kv_layout {
    uint64_t page_bytes, k_offset, v_offset;
    uint32_t kv_heads, head_dim;
    lt_dtype dtype; /* F16, Q8_0 or F32 */
} lt_kv_layout;
typedef struct lt_kv_store_params { lt_kv_layout kv; } lt_kv_store_params;
typedef struct lt_attention_params {
    lt_kv_layout kv;
    uint32_t heads;   /* query heads, a multiple of kv.kv_heads */
    uint32_t window;  /* keys a query sees, itself included; 0: all before it */
    float    scale;   /* of q.k */
    float    cap;     /* scaled scores become cap * tanh(score / cap); 0: as they are */
    lt_attention how; /* for rows of a prompt */
} lt_attention_params;

typedef union lt_op_params {
#define LT_OP(name, nsrc, params, text) params name;
#include "graph/ops.def"
#undef LT_OP
} lt_op_params;

typedef struct lt_op_args {
    lt_op        op;
    uint32_t     n_src;
    lt_op_params params;
    lt_view      src[LT_OP_MAX_SRC];
    lt_view      dst;
    lt_addr      scratch; /* as many bytes as the device asked for, or 0 */
    bool         prefill; /* rows of a prompt, however few: a device may sum in an order of its own, the same for any
                             number of rows. Else every device agrees to the bit (docs/arithmetic.md). */
    const char  *name;    /* "blk.3.attn_q"; static for the launch; names errors */
    uint64_t     virtual_ns; /* duration on a virtual clock; 0: from bytes and rate */
} lt_op_args;

typedef struct lt_op_traits {
    const char *name;
    uint32_t    n_src, n_needed; /* at most, at least */
    const char *text;
} lt_op_traits;
const lt_op_traits *lt_op_get(lt_op op);
/* Whether src1 may be cut along its first dimension into launches that each write their part of dst. */
static inline bool lt_op_cuts(lt_op op) { return op == LT_OP_LINEAR || op == LT_OP_EXPERT_LINEAR; }

/* Checks dims and dtypes of a launch against the op's contract in ops.def; a wrong
 * one is a bug of the builder, answered with E_INVALID and a sentence. */
LT_NODISCARD lt_status lt_op_check(const lt_op_args *args, lt_err *err);

#endif
