/* graph.h - ops in order, over tensors whose first dimension may be the number of tokens.
 *
 * A graph is built once for a model and run with any number of tokens up to its batch:
 * tensors marked LT_DIM_TOKENS or LT_DIM_ROWS get that dimension at launch. The order of
 * nodes is the order of execution. Weights are named by index into the model's table;
 * activations get an offset in one area by liveness (lt__graph_layout). */
#ifndef LT_GRAPH_H
#define LT_GRAPH_H

#include "graph/op.h"

#define LT_DIM_TOKENS (-1) /* tokens of the pass */
#define LT_DIM_ROWS   (-2) /* rows the head computes logits for */

typedef enum lt_tensor_kind {
    LT_TENSOR_WEIGHT, /* bytes of the model */
    LT_TENSOR_ACT,    /* lives between two nodes; offset from the layout */
    LT_TENSOR_INPUT,  /* written by the session before a pass; kept in the io area */
    LT_TENSOR_OUTPUT, /* read by the session after a pass; kept in the io area */
    LT_TENSOR_STATE   /* KV cache of a group; address from the session */
} lt_tensor_kind;

/* What an input or a state is, so that the session knows what to write there. */
typedef enum lt_role {
    LT_ROLE_NONE,
    LT_ROLE_EMBD,      /* f32 [TOKENS, embd]: embedding rows, gathered on the host for every pass;
                          the graph may use it as the residual and overwrite it */
    LT_ROLE_POS,       /* i32 [TOKENS] */
    LT_ROLE_TABLE,     /* i32 [pages of group `group`]; dim[0] is 0 until the session sets it, before layout_io */
    LT_ROLE_ROPE,      /* f32 [TOKENS, rotated/2, 2] of rope set `group` */
    LT_ROLE_ROWS,      /* i32 [ROWS]: which tokens the head takes */
    LT_ROLE_KV,        /* I8 [bytes] cache of group `group`; dim[0] likewise */
    LT_ROLE_LOGITS     /* f32 [ROWS, vocab] */
} lt_role;

typedef uint32_t lt_tid; /* tensor index; LT_NO_TENSOR is none */
#define LT_NO_TENSOR UINT32_MAX

typedef struct lt_tensor {
    char           name[64];
    lt_tensor_kind kind;
    lt_role        role;
    uint32_t       group;   /* KV group or rope set */
    uint32_t       weight;  /* index into the model's weights, for LT_TENSOR_WEIGHT */
    lt_dtype       dtype;
    uint32_t       ndim;
    int64_t        dim[LT_MAX_DIMS]; /* outermost first; dim[0] may be LT_DIM_TOKENS or LT_DIM_ROWS */
    lt_tid         base;    /* a window of another tensor (same bytes), or LT_NO_TENSOR */
    uint64_t       base_offset; /* bytes, along one token's row */
    uint64_t       row_stride;  /* bytes from one dim[0] to the next; that of the base for a window */
    uint64_t       offset;  /* in its area, by the layout */
    uint32_t       first, last; /* nodes between which it lives, by the layout */
} lt_tensor;

typedef struct lt_node {
    lt_op        op;
    uint32_t     n_src;
    lt_op_params params;
    lt_tid       src[LT_OP_MAX_SRC];
    lt_tid       dst;
    int32_t      layer; /* -1: before the first, layers: the head */
    char         name[64];
} lt_node;

typedef struct lt_graph {
    lt_ctx    *ctx;
    lt_tensor *tensors; size_t n_tensors, cap_tensors;
    lt_node   *nodes;   size_t n_nodes, cap_nodes;
    int32_t    layer;   /* given to new nodes */
    lt_status  status;  /* first failure of a builder call; later calls do nothing */
    lt_err     err;
} lt_graph;

/* Builder calls never fail loudly: they remember the first failure, return LT_NO_TENSOR,
 * and lt__graph_finish reports it. Shapes and dtypes of dst follow from the op. */
void   lt__graph_init(lt_graph *g, lt_ctx *ctx);
void   lt__graph_deinit(lt_graph *g);
lt_tid lt__graph_weight(lt_graph *g, const char *name, uint32_t weight, lt_dtype t, const uint64_t *dim, uint32_t ndim);
lt_tid lt__graph_input(lt_graph *g, const char *name, lt_role role, uint32_t group, lt_dtype t, const int64_t *dim, uint32_t ndim);
lt_tid lt__graph_state(lt_graph *g, const char *name, uint32_t group, lt_dtype t);
/* A window along the last dimensions of each row: columns [first, first + n) viewed as [.., dims];
 * dim[] leaves the first dimension out, n is its product. Not of block dtypes. */
lt_tid lt__graph_window(lt_graph *g, lt_tid of, uint64_t first_col, const int64_t *dim, uint32_t ndim);
lt_tid lt__graph_node(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src, uint32_t n_src);
/* Same, with dst = src[0] (ops that allow it in place). */
lt_tid lt__graph_inplace(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src, uint32_t n_src);
/* Same, writing into a state (KV_STORE). */
lt_tid lt__graph_into(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src, uint32_t n_src, lt_tid dst);
void   lt__graph_output(lt_graph *g, lt_tid t, lt_role role);
LT_NODISCARD lt_status lt__graph_finish(lt_graph *g, lt_err *err);

/* Liveness: gives every ACT an offset; *bytes is the area for `tokens` and `rows`. Greedy by
 * size, aligned to `align`; windows and in-place results share. Deterministic. */
LT_NODISCARD lt_status
lt__graph_layout(lt_graph *g, uint32_t tokens, uint32_t rows, uint64_t align, uint64_t *bytes, lt_err *err);
/* Io area (inputs and outputs) likewise, without reuse. */
LT_NODISCARD lt_status
lt__graph_layout_io(lt_graph *g, uint32_t tokens, uint32_t rows, uint64_t align, uint64_t *bytes, lt_err *err);
/* Where in the io area an input of TOKENS or ROWS lies in a pass of that many, at most those of layout_io: such
 * inputs come first and close up, so that one copy fills them. Of LT_NO_TENSOR: their end. The first one's offset
 * is 0 in every pass. */
uint64_t lt__graph_input_offset(const lt_graph *g, lt_tid id, uint32_t tokens, uint32_t rows, uint64_t align);
/* UINT64_MAX on overflow. A window: from its first byte, rows at the base's stride. */
uint64_t lt__tensor_bytes(const lt_tensor *t, uint32_t tokens, uint32_t rows);
/* The view of a launch, given where the tensor (or window) starts. */
void lt__tensor_view(const lt_tensor *t, lt_addr addr, uint32_t tokens, uint32_t rows, lt_view *out);

#endif
