/* matvec_float.h - f32, f16 and bf16 rows times one token: the rows shared out among the threads.
 *
 * The including file gives dot(dtype, row, x, columns), S(256) of docs/arithmetic.md. */
#ifndef LT_CPU_MATVEC_FLOAT_H
#define LT_CPU_MATVEC_FLOAT_H

typedef struct mf_job {
    const lt_op_args *args;
    lt_team *team;
    uint64_t step;
} mf_job;

static void mf_rows(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const float *x, float *out)
{
    for (uint64_t r = 0; r < rows; r++, w += row_bytes)
        out[r] = t == LT_DTYPE_F16    ? dot(LT_DTYPE_F16, w, x, cols)
                 : t == LT_DTYPE_BF16 ? dot(LT_DTYPE_BF16, w, x, cols)
                                      : dot(LT_DTYPE_F32, w, x, cols);
}

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
        mf_rows(w->dtype, (const uint8_t *)lt_cpu_ptr(w->addr) + r * (uint64_t)w->stride[0], (size_t)w->stride[0], end - r, cols, x,
                out + r);
    }
}

static void mf_run(const lt_op_args *args, lt_team *team)
{
    mf_job j = {.args = args, .team = team, .step = LT_MATVEC_BYTES / (uint64_t)args->src[1].stride[0] + 1};
    lt__team_run(team, mf_rank, &j);
}

#endif
