/* plan_internal.h - what a plan is made from, and what it holds for the engine.
 *
 * The planner knows a graph, the sizes of weights, KV groups and a device; it knows no
 * architecture. src/run/plan_model.c fills the input from a model. */
#ifndef LT_PLAN_INTERNAL_H
#define LT_PLAN_INTERNAL_H

#include "graph/graph.h"
#include "lowtide/plan.h"

#define LT__PLAN_ALIGN 256 /* every block of the arena */

typedef struct lt__plan_weight {
    const char *name;
    lt_dtype    dtype;
    uint64_t    rows, row_bytes, bytes; /* rows: of a matrix, or its experts */
    uint32_t    unit;   /* rows that a slice is a multiple of */
    double      active; /* share of the rows that a token uses: under 1 of experts */
    bool        whole;  /* never cut, always resident: norms and biases */
} lt__plan_weight;

typedef struct lt__plan_group { uint32_t window; uint64_t page_bytes; } lt__plan_group;

typedef struct lt__plan_input {
    lt_ctx          *ctx;
    lt_graph        *graph;     /* its layout is set for the chosen batch */
    lt__plan_weight *weights;   /* of the device, by the graph's weight index; bytes 0: not on the device */
    size_t           n_weights;
    lt__plan_group   groups[2];
    uint32_t         n_groups, context;
    uint64_t         attend_width; /* layers * heads * head_dim: multiply-adds of q.k a pair of positions */
    uint64_t         host_weight_bytes; /* embedding rows that stay in the file */
    uint64_t         file_bytes;
    /* Device memory the largest launch of a pass wants beside its operands; NULL: none. */
    uint64_t       (*scratch)(void *user, const lt_graph *g, uint32_t tokens, uint32_t rows);
    void            *scratch_user;
} lt__plan_input;

typedef struct lt__plan_slice {
    uint32_t weight;
    uint64_t row0, rows, bytes;
    lt_place place;
} lt__plan_slice;

struct lt_plan {
    lt_ctx          *ctx;
    const void      *model;     /* the model it was made for; a session checks it */
    lt_plan_desc     desc;      /* as asked for */
    lt_plan_info     info;
    lt_graph         graph;     /* owned */
    lt__plan_weight *weights;   size_t n_weights;
    lt__plan_slice  *slices;    size_t n_slices, cap_slices; /* in the order of use */
    lt__plan_group   groups[2];
    uint32_t         n_groups, pages[2];
    uint64_t         slice_bytes; /* largest streamed slice */
    uint64_t         arena_bytes;
    bool             direct;      /* read around the page cache */
    uint64_t         staging_bytes; /* of host memory between disk and card; 0: the default */
    lt_profile       profile;
    uint64_t         attend_width;
    char           (*reasons)[256]; size_t n_reasons, cap_reasons;
};

/* Makes the plan; on success takes graph and weights over. E_NO_FIT names the missing bytes. */
LT_NODISCARD lt_status
lt__plan_make(lt__plan_input *in, const lt_device_info *dev, const lt_profile *prof, const lt_plan_desc *desc,
              lt_plan **out, lt_err *err);
/* Fills the predicted and floor speeds of p->info; plan/predict.c. */
void lt__plan_predict(lt_plan *p, const lt_device_info *dev, uint32_t expect_prompt);
/* Seconds below which a pass of `tokens` tokens at KV depth `depth` cannot get, from bytes and rates alone. */
double lt__plan_floor_seconds(const lt_plan *p, uint32_t tokens, uint32_t depth);
/* The plan for another budget, everything else kept: the same positions of KV, passes as large or smaller,
 * the same bits. src/run/plan_model.c. */
LT_NODISCARD lt_status lt__plan_again(const lt_plan *p, lt_device *dev, uint64_t budget_bytes, lt_plan **out, lt_err *err);
void lt__plan_reason(lt_plan *p, const char *fmt, ...) LT_PRINTF(2, 3);

#endif
