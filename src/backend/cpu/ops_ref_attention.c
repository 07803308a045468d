/* The paged cache: KV_STORE and ATTENTION. */
#include "backend/cpu/ops_ref.h"

static uint64_t kv_row_bytes(const lt_kv_layout *kv)
{
    uint64_t bytes = 0;
    LT_ASSERT(lt_dtype_row_bytes(kv->dtype, kv->head_dim, &bytes)); /* lt_op_check saw to it */
    return bytes;
}

/* Offset in the cache of the K row of a position; V is (v_offset - k_offset) further. */
static uint64_t k_row_offset(const lt_kv_layout *kv, const lt_view *table, uint32_t head, int64_t pos)
{
    const int32_t *pages = lt_cpu_ptr(table->addr);
    uint64_t page = (uint64_t)pages[pos / LT_KV_PAGE % table->dim[0]];
    uint64_t row = (uint64_t)head * LT_KV_PAGE + (uint64_t)(pos % LT_KV_PAGE);
    return page * kv->page_bytes + kv->k_offset + row * kv_row_bytes(kv);
}

/* 64 bits: the page behind the last position has no int32. */
static int64_t first_visible(int32_t pos, uint32_t window)
{
    return window && pos >= (int64_t)window ? pos - (int64_t)window + 1 : 0;
}

/* Positions and page numbers are data, so they are checked when the op runs. */
lt_status lt__kv_check_pages(const lt_op_args *args, const lt_kv_layout *kv, const lt_view *cache,
                             uint32_t window, lt_err *err)
{
    const lt_view *table = &args->src[3];
    const int32_t *pos = lt_cpu_ptr(args->src[2].addr), *pages = lt_cpu_ptr(table->addr);
    int64_t limit = cache->dim[0] / (int64_t)kv->page_bytes;
    const char *name = args->name ? args->name : "attention";
    for (int64_t t = 0; t < args->src[2].dim[0]; t++) {
        if (pos[t] < 0)
            return lt__fail(err, LT_E_INVALID, "%s: position %d of token %lld, expected 0 or more", name, pos[t],
                            (long long)t);
        int64_t last = pos[t] / LT_KV_PAGE, page = first_visible(pos[t], window) / LT_KV_PAGE;
        if (last - page >= table->dim[0])
            return lt__fail(err, LT_E_INVALID, "%s: position %d reads %lld pages back, the table has %lld", name,
                            pos[t], (long long)(last - page + 1), (long long)table->dim[0]);
        for (; page <= last; page++) {
            int32_t p = pages[page % table->dim[0]];
            if (p < 0 || p >= limit)
                return lt__fail(err, LT_E_INVALID, "%s: page %d for position %d, the cache has %lld", name, p,
                                pos[t], (long long)limit);
        }
    }
    return LT_OK;
}

static void store_row(lt_dtype t, const float *x, uint8_t *out, uint32_t n)
{
    switch (t) {
    case LT_DTYPE_F16:
        for (uint32_t i = 0; i < n; i++) {
            uint16_t h = lt__f32_to_f16(x[i]);
            memcpy(out + 2 * i, &h, 2);
        }
        return;
    case LT_DTYPE_Q8_0:
        for (uint32_t b = 0; b < n / 32; b++, out += 34, x += 32) {
            float amax = 0;
            for (int i = 0; i < 32; i++)
                amax = lt__amax(amax, x[i]);
            float id = amax > 0 ? 127.0f / amax : 0;
            uint16_t d = lt__f32_to_f16(amax / 127.0f);
            memcpy(out, &d, 2);
            for (int i = 0; i < 32; i++)
                out[2 + i] = (uint8_t)lt__quantize(x[i], isinf(id) ? 0 : id);
        }
        return;
    default:
        memcpy(out, x, (size_t)n * 4);
    }
}

lt_status lt__ref_kv_store(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team;
    const lt_kv_layout *kv = &args->params.KV_STORE.kv;
    const int32_t *pos = lt_cpu_ptr(args->src[2].addr);
    lt_status s = lt__kv_check_pages(args, kv, &args->dst, 1, err);
    if (s != LT_OK)
        return s;
    for (int64_t t = 0; t < args->src[0].dim[0]; t++) {
        for (uint32_t h = 0; h < kv->kv_heads; h++) {
            uint8_t *k = (uint8_t *)lt_cpu_ptr(args->dst.addr) + k_row_offset(kv, &args->src[3], h, pos[t]);
            store_row(kv->dtype, (const float *)(void *)lt__ref_row2(&args->src[0], t, h), k, kv->head_dim);
            store_row(kv->dtype, (const float *)(void *)lt__ref_row2(&args->src[1], t, h),
                      k - kv->k_offset + kv->v_offset, kv->head_dim);
        }
    }
    return LT_OK;
}

/* One chunk of one head: m, l and o[] of positions first..last of one page. */
static void attend_chunk(const lt_op_args *a, const float *q, uint32_t kv_head, int64_t first, int64_t last,
                         float *m, float *l, float *o)
{
    const lt_attention_params *p = &a->params.ATTENTION;
    uint32_t dim = p->kv.head_dim;
    const uint8_t *cache = lt_cpu_ptr(a->src[1].addr);
    float s[LT_KV_PAGE], row[LT_HEAD_DIM_MAX], sums[8] = {0};
    for (int64_t i = first; i <= last; i++) {
        lt_dtype_to_f32(p->kv.dtype, cache + k_row_offset(&p->kv, &a->src[3], kv_head, i), row, dim);
        float x = lt__strided_sum(8, q, row, dim) * p->scale;
        x = p->cap > 0 ? lt__softcapf(x, p->cap) : x;
        s[i - first] = x;
        *m = i == first || x > *m ? x : *m;
    }
    for (uint32_t j = 0; j < dim; j++)
        o[j] = 0;
    for (int64_t i = first; i <= last; i++) {
        float e = lt__expf(s[i - first] - *m);
        sums[i % 8] = fmaf(e, 1.0f, sums[i % 8]);
        lt_dtype_to_f32(p->kv.dtype,
                        cache + k_row_offset(&p->kv, &a->src[3], kv_head, i) - p->kv.k_offset + p->kv.v_offset,
                        row, dim);
        for (uint32_t j = 0; j < dim; j++)
            o[j] = fmaf(e, row[j], o[j]);
    }
    *l = lt__halving_tree(sums, 8);
}

static void attend_head(const lt_op_args *a, int64_t t, uint32_t head)
{
    const lt_attention_params *p = &a->params.ATTENTION;
    uint32_t dim = p->kv.head_dim, kv_head = head / (p->heads / p->kv.kv_heads);
    int32_t pos = ((const int32_t *)lt_cpu_ptr(a->src[2].addr))[t];
    const float *q = (const float *)(void *)lt__ref_row2(&a->src[0], t, head);
    float *out = (float *)(void *)lt__ref_row2(&a->dst, t, head);
    float M = 0, L = 0, O[LT_HEAD_DIM_MAX], o[LT_HEAD_DIM_MAX];
    int64_t from = first_visible(pos, p->window);
    for (int64_t first = from; first <= pos; first = first / LT_KV_PAGE * LT_KV_PAGE + LT_KV_PAGE) {
        int64_t last = first / LT_KV_PAGE * LT_KV_PAGE + LT_KV_PAGE - 1;
        float m = 0, l;
        attend_chunk(a, q, kv_head, first, last < pos ? last : pos, &m, &l, first == from ? O : o);
        if (first == from) {
            M = m, L = l;
            continue;
        }
        float n = m > M ? m : M, wa = lt__expf(M - n), wb = lt__expf(m - n);
        L = fmaf(L, wa, l * wb);
        for (uint32_t j = 0; j < dim; j++)
            O[j] = fmaf(O[j], wa, o[j] * wb);
        M = n;
    }
    if (a->n_src > 4) { /* the sink: a last chunk without a value */
        float sink = ((const float *)lt_cpu_ptr(a->src[4].addr))[head];
        float n = sink > M ? sink : M, wa = lt__expf(M - n);
        L = fmaf(L, wa, lt__expf(sink - n));
        for (uint32_t j = 0; j < dim; j++)
            O[j] = O[j] * wa;
    }
    for (uint32_t j = 0; j < dim; j++)
        out[j] = O[j] / L;
}

static void attend_range(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    uint64_t heads = a->params.ATTENTION.heads, i, end;
    lt__team_range((uint64_t)a->dst.dim[0] * heads, 1, rank, ranks, &i, &end);
    for (; i < end; i++)
        attend_head(a, (int64_t)(i / heads), (uint32_t)(i % heads));
}

lt_status lt__ref_attention(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes;
    const lt_attention_params *p = &args->params.ATTENTION;
    lt_status s = lt__kv_check_pages(args, &p->kv, &args->src[1], p->window, err);
    if (s != LT_OK)
        return s;
    lt__team_run(team, attend_range, (void *)args);
    return LT_OK;
}
