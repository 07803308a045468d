/* LINEAR over quantised weights: how the rows are shared out. */
#include "backend/cpu/linear_avx2.h"
#include "backend/cpu/rows_avx2.h"

#define MATVEC_BYTES ((size_t)32 << 10) /* of weights taken at a time by a thread */

typedef struct linear_job {
    lt__gemm g;
    lt_team *team;
    uint64_t step; /* rows taken at a time */
    uint8_t *scratch;
    size_t scratch_each;
} linear_job;

static void linear_rank(void *arg, uint32_t rank, uint32_t ranks) {
    const linear_job *j = arg;
    const lt__gemm *g = &j->g;
    (void)ranks;
    for (;;) {
        uint64_t r = lt__team_next(j->team, j->step);
        if (r >= g->rows)
            return;
        uint64_t end = g->rows - r < j->step ? g->rows : r + j->step;
        if (g->tokens == 1)
            lt__matvec_avx2(g->t, g->w + r * g->w_stride, g->w_stride, end - r, g->cols, g->act,
                            (float *)(void *)g->dst + r);
        else
            lt__gemm_avx2(g, r, end, j->scratch + rank * j->scratch_each);
    }
}

static uint64_t up8(uint64_t x) { return (x + 7) & ~(uint64_t)7; }

lt_status lt__linear_quant_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes,
                                lt_err *err) {
    const lt_view *x = &args->src[0], *w = &args->src[1];
    (void)scratch_bytes, (void)err;
    linear_job j = {.team = team, .scratch = scratch};
    j.g = (lt__gemm){.t = w->dtype, .w = lt_cpu_ptr(w->addr), .act = lt_cpu_ptr(x->addr), .dst = lt_cpu_ptr(args->dst.addr),
                     .w_stride = (size_t)w->stride[0], .act_stride = (size_t)x->stride[0],
                     .dst_stride = (size_t)args->dst.stride[0], .rows = (uint64_t)w->dim[0],
                     .cols = (uint64_t)w->dim[1], .tokens = (uint64_t)x->dim[0]};
    const uint64_t share = up8(j.g.rows / (4 * lt__team_threads(team)) + 1);
    if (j.g.tokens == 1) {
        j.step = up8(MATVEC_BYTES / j.g.w_stride + 1);
    } else {
        j.step = lt__gemm_rows_avx2(w->dtype, j.g.cols);
        j.scratch_each = lt__gemm_scratch_avx2(w->dtype, j.g.cols);
    }
    if (share < j.step)
        j.step = share;
    lt__team_run(team, linear_rank, &j);
    return LT_OK;
}

size_t lt__linear_quant_scratch_avx2(const lt_op_args *args, uint32_t threads) {
    if (args->src[0].dim[0] == 1)
        return 0;
    return threads * lt__gemm_scratch_avx2(args->src[1].dtype, (uint64_t)args->src[1].dim[1]);
}
