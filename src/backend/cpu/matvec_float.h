/* matvec_float.h - f32, f16 and bf16 rows times one token: the rows shared out among the threads.
 *
 * The including file gives dot(dtype, row, x, columns), S(256) of docs/arithmetic.md. */
#ifndef LT_CPU_MATVEC_FLOAT_H
#define LT_CPU_MATVEC_FLOAT_H

#define MF_BYTES ((size_t)32 << 10) /* of weights taken at a time by a thread */

typedef struct mf_job {
    const lt_op_args *args;
    lt_team *team;
    uint64_t step;
} mf_job;

static void mf_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const mf_job *j = arg;
    const lt_view *w = &j->args->src[1];
    const uint64_t rows = (uint64_t)w->dim[0], cols = (uint64_t)w->dim[1];
    const float *x = lt_cpu_ptr(j->args->src[0].addr);
    float *out = lt_cpu_ptr(j->args->dst.addr);
    (void)rank, (void)ranks;
    for (uint64_t r; (r = lt__team_next(j->team, j->step)) < rows;) {
        const uint64_t end = rows - r < j->step ? rows : r + j->step;
        const uint8_t *p = (const uint8_t *)lt_cpu_ptr(w->addr) + r * (uint64_t)w->stride[0];
        for (; r < end; r++, p += w->stride[0])
            out[r] = w->dtype == LT_DTYPE_F16    ? dot(LT_DTYPE_F16, p, x, cols)
                     : w->dtype == LT_DTYPE_BF16 ? dot(LT_DTYPE_BF16, p, x, cols)
                                                 : dot(LT_DTYPE_F32, p, x, cols);
    }
}

static void mf_run(const lt_op_args *args, lt_team *team)
{
    mf_job j = {.args = args, .team = team, .step = MF_BYTES / (uint64_t)args->src[1].stride[0] + 1};
    lt__team_run(team, mf_rank, &j);
}

#endif
