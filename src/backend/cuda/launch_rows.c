/* launch_rows.c - quantisation, norm, rotation, cache writes and the elementwise ops. */
#include <string.h>

#include "backend/cuda/launch.h"

#define THREADS 256

/* Views as rows of the last dimension: [outer][inner][cols]. */
static lt_cuda_rows rows_of(const lt_op_args *args)
{
    const lt_view *a = &args->src[0], *b = &args->src[1], *y = &args->dst;
    lt_cuda_rows r = {.a = a->addr, .y = y->addr, .outer = (int32_t)(a->ndim > 1 ? a->dim[0] : 1), .inner = 1,
                      .cols = (int32_t)a->dim[a->ndim - 1]};
    for (uint32_t d = 1; d + 1 < a->ndim; d++)
        r.inner *= (int32_t)a->dim[d];
    r.a_outer = lt__cuda_stride(a, 0);
    r.y_outer = lt__cuda_stride(y, 0);
    r.a_inner = a->ndim > 2 ? a->stride[a->ndim - 2] : 0;
    r.y_inner = y->ndim > 2 ? y->stride[y->ndim - 2] : 0;
    if (args->n_src > 1) {
        r.b = b->addr;
        r.b_outer = lt__cuda_stride(b, 0);
        r.extra = b->ndim > 2 ? (int32_t)b->stride[b->ndim - 2] : 0;
    }
    return r;
}

/* The middle dimensions must lie evenly, so that one stride walks them. */
static bool even(const lt_view *v)
{
    for (uint32_t d = 1; d + 2 < v->ndim; d++)
        if (v->stride[d] != v->stride[d + 1] * v->dim[d + 1])
            return false;
    return true;
}

static bool accepts_rows(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    *why = "a view of four dimensions whose middle ones do not lie evenly";
    if (a->op != LT_OP_SCALE && (!even(&a->src[0]) || !even(&a->dst) || (a->n_src > 1 && !even(&a->src[1]))))
        return false;
    *why = "over two billion rows or columns, or four billion elements to quantise";
    int64_t n = 1;
    for (uint32_t d = 0; d < a->src[0].ndim; d++)
        if (__builtin_mul_overflow(n, a->src[0].dim[d], &n))
            return false;
    if (a->op == LT_OP_QUANTIZE && n > UINT32_MAX - THREADS)
        return false;
    return n / 32 < INT32_MAX / 2 && a->src[0].dim[a->src[0].ndim - 1] < INT32_MAX;
}

static lt_status launch_units(lt_cuda_device *dev, CUstream s, const char *kernel, int64_t units, int64_t per_block, void *arg,
                              const lt_op_args *args, lt_err *err)
{
    if (units == 0)
        return LT_OK;
    lt_cuda_dim grid = {lt__cuda_blocks(units, per_block), 1, 1}, block = {THREADS, 1, 1};
    return lt__cuda_launch(dev, "rows", kernel, grid, block, 0, s, (void *[]){arg}, args, err);
}

static int64_t elements(const lt_cuda_rows *r) { return (int64_t)r->outer * r->inner * r->cols; }

static lt_status quantize(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    if (r.inner > 1 && (r.outer == 1 || (r.a_outer == r.inner * r.a_inner && r.y_outer == r.inner * r.y_inner)))
        r.outer *= r.inner, r.inner = 1, r.a_outer = r.a_inner, r.y_outer = r.y_inner;
    r.extra = (r.a | (uint64_t)(r.a_outer | r.a_inner)) & 15 ? 32 : 8; /* lanes a block of 32 */
    return launch_units(dev, s, r.inner > 1 ? "quantize_apart" : "quantize_rows", elements(&r) / 32, THREADS / r.extra, &r, args, err);
}

static lt_status rms_norm(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    r.value = args->params.RMS_NORM.eps;
    return launch_units(dev, s, "rms_norm", (int64_t)r.outer * r.inner, 1, &r, args, err);
}

static lt_status rope(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    int32_t rotated = (int32_t)args->params.ROPE.rotated;
    r.extra = args->params.ROPE.style == LT_ROPE_PAIRS ? -rotated : rotated;
    return launch_units(dev, s, "rope", (int64_t)r.outer * r.inner * (r.cols - rotated / 2), THREADS, &r, args, err);
}

/* By four elements a thread where all rows lie at multiples of 16 bytes. */
static lt_status launch_each(lt_cuda_device *dev, CUstream s, const char *kernel, const char *by_four, lt_cuda_rows *r,
                             const lt_op_args *args, lt_err *err)
{
    uint64_t bits = r->a | r->b | r->y | (uint64_t)(r->a_outer | r->a_inner | r->b_outer | r->y_outer | r->y_inner | r->extra);
    bool four = (bits & 15) == 0 && r->cols % 4 == 0;
    return launch_units(dev, s, four ? by_four : kernel, elements(r) / (four ? 4 : 1), THREADS, r, args, err);
}

#define EACH(fn, kernel)                                                                               \
    static lt_status fn(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)         \
    {                                                                                                  \
        lt_cuda_rows r = rows_of(args);                                                                \
        return launch_each(dev, s, kernel, kernel "_4", &r, args, err);                                \
    }
EACH(add, "add_rows")
EACH(silu_mul, "silu_mul")
EACH(gelu_mul, "gelu_mul")

/* Four dimensions whose middle ones lie unevenly go as so many of three. */
static lt_status scale(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    if (!even(&args->src[0]) || !even(&args->dst)) {
        lt_op_args part = *args;
        lt_view *v[2] = {&part.src[0], &part.dst};
        for (int k = 0; k < 2; k++) {
            v[k]->ndim--;
            memmove(v[k]->dim, v[k]->dim + 1, 3 * sizeof *v[k]->dim);
            memmove(v[k]->stride, v[k]->stride + 1, 3 * sizeof *v[k]->stride);
        }
        lt_status st = LT_OK;
        for (int64_t i = 0; i < args->src[0].dim[0] && st == LT_OK; i++) {
            v[0]->addr = args->src[0].addr + (uint64_t)(i * args->src[0].stride[0]);
            v[1]->addr = args->dst.addr + (uint64_t)(i * args->dst.stride[0]);
            st = scale(dev, s, &part, err);
        }
        return st;
    }
    lt_cuda_rows r = rows_of(args);
    r.value = args->params.SCALE.factor;
    return launch_each(dev, s, "scale_rows", "scale_rows_4", &r, args, err);
}

static lt_status softcap(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    r.value = args->params.SOFTCAP.cap;
    return launch_each(dev, s, "softcap_rows", "softcap_rows_4", &r, args, err);
}

static lt_status clamp_mul(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    r.value = args->params.CLAMP_MUL.alpha;
    r.limit = args->params.CLAMP_MUL.limit;
    return launch_each(dev, s, "clamp_mul", "clamp_mul_4", &r, args, err);
}

static lt_status take_rows(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_rows r = rows_of(args);
    r.inner = (int32_t)args->src[0].dim[0];
    r.outer = (int32_t)args->dst.dim[0];
    r.wrong = lt__cuda_wrong(dev);
    r.name = (uint64_t)(uintptr_t)(args->name ? args->name : "take_rows");
    return launch_units(dev, s, "take_rows", (int64_t)r.outer * r.cols, THREADS, &r, args, err);
}

static lt_status kv_store(lt_cuda_device *dev, CUstream s, const lt_op_args *args, lt_err *err)
{
    lt_cuda_kv_store a = {.k = args->src[0].addr, .v = args->src[1].addr, .cache = args->dst.addr, .pos = args->src[2].addr,
                          .table = args->src[3].addr, .k_token = args->src[0].stride[0], .k_head = args->src[0].stride[1],
                          .v_token = args->src[1].stride[0], .v_head = args->src[1].stride[1],
                          .tokens = (int32_t)args->src[0].dim[0]};
    lt__cuda_kv_fill(&a.kv, dev, args, &args->params.KV_STORE.kv, &args->dst);
    int64_t units = (int64_t)a.tokens * a.kv.kv_heads * ((a.kv.head_dim + 31) / 32);
    if (!units)
        return LT_OK;
    lt_cuda_dim grid = {lt__cuda_blocks(units, THREADS / 32), 2, 1}, block = {THREADS, 1, 1};
    return lt__cuda_launch(dev, "rows", "kv_store", grid, block, 0, s, (void *[]){&a}, args, err);
}

const lt_cuda_row lt__cuda_rows_rows[] = {
    {LT_OP_QUANTIZE, accepts_rows, quantize, NULL},   {LT_OP_RMS_NORM, accepts_rows, rms_norm, NULL},
    {LT_OP_ROPE, accepts_rows, rope, NULL},           {LT_OP_ADD, accepts_rows, add, NULL},
    {LT_OP_ADD_ROW, accepts_rows, add, NULL},         {LT_OP_SILU_MUL, accepts_rows, silu_mul, NULL},
    {LT_OP_GELU_MUL, accepts_rows, gelu_mul, NULL},   {LT_OP_SCALE, accepts_rows, scale, NULL},
    {LT_OP_SOFTCAP, accepts_rows, softcap, NULL},     {LT_OP_CLAMP_MUL, accepts_rows, clamp_mul, NULL},
    {LT_OP_TAKE_ROWS, accepts_rows, take_rows, NULL}, {LT_OP_KV_STORE, NULL, kv_store, NULL},
};
const size_t lt__cuda_rows_rows_n = sizeof lt__cuda_rows_rows / sizeof *lt__cuda_rows_rows;
