/* LINEAR over quantised weights: how the rows are shared out. Nothing here needs an instruction set. */
#include "backend/cpu/linear.h"

typedef struct linear_job {
    lt__gemm g;
    const lt__gemm_isa *isa;
    lt_team *team;
    uint64_t step; /* rows taken at a time */
    uint8_t *scratch;
    size_t scratch_each;
} linear_job;

static void linear_rank(void *arg, uint32_t rank, uint32_t ranks)
{
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
            j->isa->run(g, r, end, j->scratch + rank * j->scratch_each);
    }
}

void lt__linear_quant(const lt__gemm_isa *isa, const lt_op_args *args, lt_team *team, void *scratch)
{
    const lt_view *x = &args->src[0], *w = &args->src[1];
    linear_job j = {.isa = isa, .team = team, .scratch = scratch};
    j.g = (lt__gemm){.t = w->dtype, .w = lt_cpu_ptr(w->addr), .act = lt_cpu_ptr(x->addr), .dst = lt_cpu_ptr(args->dst.addr),
                     .w_stride = (size_t)w->stride[0], .act_stride = (size_t)x->stride[0],
                     .dst_stride = (size_t)args->dst.stride[0], .rows = (uint64_t)w->dim[0],
                     .cols = (uint64_t)w->dim[1], .tokens = (uint64_t)x->dim[0]};
    if (j.g.tokens == 1) {
        j.step = lt__up16(LT_MATVEC_BYTES / j.g.w_stride + 1);
    } else {
        j.step = isa->rows(w->dtype, j.g.cols);
        j.scratch_each = isa->scratch(w->dtype, j.g.cols);
    }
    const uint64_t share = lt__up16(j.g.rows / (4 * lt__team_threads(team)) + 1); /* four turns a thread, at least */
    if (share < j.step)
        j.step = share;
    lt__team_run(team, linear_rank, &j);
}

size_t lt__linear_quant_scratch(const lt__gemm_isa *isa, const lt_op_args *args, uint32_t threads)
{
    if (args->src[0].dim[0] == 1)
        return 0;
    return threads * isa->scratch(args->src[1].dtype, (uint64_t)args->src[1].dim[1]);
}
