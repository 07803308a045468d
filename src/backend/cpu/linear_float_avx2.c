/* LINEAR over f32, f16 and bf16 weights: S(256), 32 registers of accumulators.
 *
 * One token: the registers live in the first-level cache, four stretches of 256 columns at a time.
 * Many: rows are widened to f32 once, then tiles of rows by tokens take one register's columns
 * (8 of each 256) after another. */
#include "backend/cpu/avx2.h"
#include "backend/cpu/rows_avx2.h"

#define TILE_R 4
#define TILE_T 3
#define PANEL_ROWS 16
#define MATVEC_BYTES ((size_t)32 << 10) /* of weights taken at a time by a thread */

LT_ALWAYS __m256 widen8(lt_dtype t, const uint8_t *p)
{
    if (t == LT_DTYPE_F16)
        return _mm256_cvtph_ps(lt__load128(p));
    if (t == LT_DTYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lt__load128(p)), 16));
    return _mm256_loadu_ps((const float *)(const void *)p);
}
/* The last n of a row, n in 1..7, zeros behind. */
LT_ALWAYS __m256 widen_tail(lt_dtype t, const uint8_t *p, uint64_t n)
{
    uint8_t b[32] = {0};
    memcpy(b, p, n * (t == LT_DTYPE_F32 ? 4 : 2));
    return widen8(t, b);
}
/* Lanes beyond n keep what they had: an fma with zero would turn -0 into +0. */
LT_ALWAYS __m256 fma_tail(__m256 w, const float *x, __m256 a, uint64_t n)
{
    const __m256i m = lt__lane_mask(n);
    return _mm256_blendv_ps(a, _mm256_fmadd_ps(w, _mm256_maskload_ps(x, m), a), _mm256_castsi256_ps(m));
}

LT_ALWAYS float dot(lt_dtype t, const uint8_t *w, const float *x, uint64_t cols)
{
    const size_t bytes = t == LT_DTYPE_F32 ? 4 : 2;
    __m256 acc[32];
    for (int k = 0; k < 32; k++)
        acc[k] = _mm256_setzero_ps();
    uint64_t i = 0;
    for (; i + 1024 <= cols; i += 1024)
        for (uint64_t k = 0; k < 32; k++) {
            __m256 a = acc[k];
            LT_UNROLL
            for (uint64_t n = 0; n < 4; n++) {
                const uint64_t c = i + 256 * n + 8 * k;
                _mm_prefetch((const char *)w + c * bytes + 4096, _MM_HINT_T0);
                a = _mm256_fmadd_ps(widen8(t, w + c * bytes), _mm256_loadu_ps(x + c), a);
            }
            acc[k] = a;
        }
    for (; i + 8 <= cols; i += 8)
        acc[i / 8 % 32] = _mm256_fmadd_ps(widen8(t, w + i * bytes), _mm256_loadu_ps(x + i), acc[i / 8 % 32]);
    if (i < cols)
        acc[i / 8 % 32] = fma_tail(widen_tail(t, w + i * bytes, cols - i), x + i, acc[i / 8 % 32], cols - i);
    return lt__regs_tree256(acc);
}

/* w: nr rows of f32, `stride` apart and padded to whole registers; out[t][r]. */
LT_ALWAYS void tile(const int nr, const int nt, const float *w, size_t stride, const float *const *x, uint64_t cols,
                    float *const *out)
{
    __m256 sums[TILE_R * TILE_T][32];
    for (uint64_t k = 0; k < 32; k++) {
        __m256 a[TILE_R * TILE_T];
        LT_UNROLL
        for (int i = 0; i < nr * nt; i++)
            a[i] = _mm256_setzero_ps();
        uint64_t c = 8 * k;
        for (; c + 8 <= cols; c += 256) {
            __m256 v[TILE_T];
            LT_UNROLL
            for (int j = 0; j < nt; j++)
                v[j] = _mm256_loadu_ps(x[j] + c);
            LT_UNROLL
            for (int r = 0; r < nr; r++) {
                const __m256 wr = _mm256_loadu_ps(w + (size_t)r * stride + c);
                LT_UNROLL
                for (int j = 0; j < nt; j++)
                    a[r * nt + j] = _mm256_fmadd_ps(wr, v[j], a[r * nt + j]);
            }
        }
        if (c < cols)
            for (int i = 0; i < nr * nt; i++)
                a[i] = fma_tail(_mm256_loadu_ps(w + (size_t)(i / nt) * stride + c), x[i % nt] + c, a[i], cols - c);
        LT_UNROLL
        for (int i = 0; i < nr * nt; i++)
            sums[i][k] = a[i];
    }
    for (int i = 0; i < nr * nt; i++)
        out[i % nt][i / nt] = lt__regs_tree256(sums[i]);
}

typedef void tile_fn(const float *w, size_t stride, const float *const *x, uint64_t cols, float *const *out);
#define TILE(R, T) \
    static void tile_##R##T(const float *w, size_t stride, const float *const *x, uint64_t cols, float *const *out) { \
        tile(R, T, w, stride, x, cols, out); \
    }
TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(4, 1) TILE(4, 2) TILE(4, 3)
static tile_fn *const tiles[2][TILE_T] = {{tile_11, tile_12, tile_13}, {tile_41, tile_42, tile_43}};

typedef struct float_job {
    const lt_op_args *args;
    lt_team *team;
    uint64_t rows, cols, tokens, step;
    float *scratch;
    size_t panel_stride; /* elements */
} float_job;

static const float *act_row(const lt_op_args *a, uint64_t t)
{
    return (const float *)(const void *)((const char *)lt_cpu_ptr(a->src[0].addr) + (int64_t)t * a->src[0].stride[0]);
}
static float *out_row(const lt_op_args *a, uint64_t t)
{
    return (float *)(void *)((char *)lt_cpu_ptr(a->dst.addr) + (int64_t)t * a->dst.stride[0]);
}

static void widen_row(lt_dtype t, const uint8_t *p, float *out, uint64_t cols)
{
    const size_t bytes = t == LT_DTYPE_F32 ? 4 : 2;
    uint64_t i = 0;
    for (; i + 8 <= cols; i += 8)
        _mm256_storeu_ps(out + i, t == LT_DTYPE_F16    ? widen8(LT_DTYPE_F16, p + i * bytes)
                                  : t == LT_DTYPE_BF16 ? widen8(LT_DTYPE_BF16, p + i * bytes)
                                                       : widen8(LT_DTYPE_F32, p + i * bytes));
    if (i < cols)
        _mm256_storeu_ps(out + i, widen_tail(t, p + i * bytes, cols - i));
}

static void many_rows(const float_job *j, uint64_t first, uint64_t end, float *panel)
{
    const lt_view *w = &j->args->src[1];
    const uint8_t *base = lt_cpu_ptr(w->addr);
    for (uint64_t r = first; r < end; r++)
        widen_row(w->dtype, base + (int64_t)r * w->stride[0], panel + (r - first) * j->panel_stride, j->cols);
    for (uint64_t t = 0; t < j->tokens; t += TILE_T) {
        const uint64_t nt = j->tokens - t < TILE_T ? j->tokens - t : TILE_T;
        const float *x[TILE_T];
        float *out[TILE_T];
        for (uint64_t i = 0; i < nt; i++)
            x[i] = act_row(j->args, t + i);
        for (uint64_t r = first; r < end;) {
            const bool four = end - r >= TILE_R;
            for (uint64_t i = 0; i < nt; i++)
                out[i] = out_row(j->args, t + i) + r;
            tiles[four][nt - 1](panel + (r - first) * j->panel_stride, j->panel_stride, x, j->cols, out);
            r += four ? TILE_R : 1;
        }
    }
}

static void one_token(const float_job *j, uint64_t first, uint64_t end)
{
    const lt_view *w = &j->args->src[1];
    const uint8_t *p = (const uint8_t *)lt_cpu_ptr(w->addr) + (int64_t)first * w->stride[0];
    const float *x = act_row(j->args, 0);
    float *out = out_row(j->args, 0);
    for (uint64_t r = first; r < end; r++, p += w->stride[0])
        out[r] = w->dtype == LT_DTYPE_F16    ? dot(LT_DTYPE_F16, p, x, j->cols)
                 : w->dtype == LT_DTYPE_BF16 ? dot(LT_DTYPE_BF16, p, x, j->cols)
                                             : dot(LT_DTYPE_F32, p, x, j->cols);
}

static void float_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const float_job *j = arg;
    (void)ranks;
    for (;;) {
        uint64_t r = lt__team_next(j->team, j->step);
        if (r >= j->rows)
            return;
        uint64_t end = j->rows - r < j->step ? j->rows : r + j->step;
        if (j->tokens == 1)
            one_token(j, r, end);
        else
            many_rows(j, r, end, j->scratch + rank * PANEL_ROWS * j->panel_stride);
    }
}

static size_t panel_stride(uint64_t cols) { return (cols + 15) & ~(uint64_t)15; }

lt_status lt__linear_float_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes,
                                lt_err *err)
{
    (void)scratch_bytes, (void)err;
    const lt_view *w = &args->src[1];
    float_job j = {.args = args, .team = team, .rows = (uint64_t)w->dim[0], .cols = (uint64_t)w->dim[1],
                   .tokens = (uint64_t)args->src[0].dim[0], .scratch = scratch, .step = PANEL_ROWS,
                   .panel_stride = panel_stride((uint64_t)w->dim[1])};
    if (j.tokens == 1)
        j.step = MATVEC_BYTES / (uint64_t)w->stride[0] + 1;
    lt__team_run(team, float_rank, &j);
    return LT_OK;
}

size_t lt__linear_float_scratch_avx2(const lt_op_args *args, uint32_t threads)
{
    if (args->src[0].dim[0] == 1)
        return 0;
    return threads * PANEL_ROWS * panel_stride((uint64_t)args->src[1].dim[1]) * sizeof(float);
}
