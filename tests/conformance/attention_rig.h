/* attention_rig.h - a paged cache filled through KV_STORE, and attention over it in float64. */
#ifndef LT_TESTS_ATTENTION_RIG_H
#define LT_TESTS_ATTENTION_RIG_H

#include "rig.h"

typedef struct setup {
    lt_dtype kv;
    int32_t  length, tokens, dim, kv_heads, heads, window;
    data_kind data;
    bool     ring;      /* the table holds only the pages the window needs */
    bool     scattered; /* the tokens are any positions in any order, not the last ones */
    float    cap;       /* of scores; 0: none */
    bool     sinks;     /* one a query head: of any size, some far above all scores, some far below */
} setup;

typedef struct cache {
    setup    s;
    lt_kv_layout layout;
    int32_t  pages, entries; /* of the cache, of the table */
    int32_t *table, *pos;    /* pos of the query tokens */
    float   *q, *k, *v, *sinks;
    uint8_t *bytes;
    size_t   n_bytes;
    float   *y;
    rig_case c;
} cache;

static const char *setup_name(const setup *s)
{
    static char name[200];
    snprintf(name, sizeof name, "ATTENTION %s, head %d, %d heads over %d, length %d, %d tokens, window %d%s%s, cap %g%s, %s data",
             lt_dtype_get(s->kv)->name, s->dim, s->heads, s->kv_heads, s->length, s->tokens, s->window,
             s->ring ? ", ring" : "", s->scattered ? ", scattered" : "", s->cap, s->sinks ? ", sinks" : "", data_names[s->data]);
    return name;
}

/* The formula of op.h once more, so that a wrong address in the library shows. */
static size_t address(const cache *c, bool value, int32_t head, int32_t pos)
{
    uint64_t row;
    assert_true(lt_dtype_row_bytes(c->s.kv, (uint64_t)c->s.dim, &row));
    return (size_t)c->table[pos / 256 % c->entries] * c->layout.page_bytes +
           (value ? c->layout.v_offset : c->layout.k_offset) + ((size_t)head * 256 + pos % 256) * row;
}

static int32_t first_seen(const setup *s, int32_t pos)
{
    return s->window && pos - s->window + 1 > 0 ? pos - s->window + 1 : 0;
}

/* More pages than needed, gaps between the parts of a page, a permuted table. */
static void lay_out(cache *c)
{
    uint64_t row;
    int32_t needed = (c->s.length + 255) / 256;
    if (c->s.ring) /* pages seen by the first token up to the last */
        needed = (c->s.length - 1) / 256 - first_seen(&c->s, c->s.length - c->s.tokens) / 256 + 1;
    assert_true(lt_dtype_row_bytes(c->s.kv, (uint64_t)c->s.dim, &row));
    uint64_t part = row * 256 * (uint64_t)c->s.kv_heads;
    c->layout = (lt_kv_layout){.page_bytes = lt__round_up(2 * part + 192, 64), .k_offset = 64,
                               .v_offset = 128 + part, .kv_heads = (uint32_t)c->s.kv_heads,
                               .head_dim = (uint32_t)c->s.dim, .dtype = c->s.kv};
    c->entries = needed, c->pages = needed + 2;
    c->table = malloc((size_t)c->pages * 4);
    for (int32_t i = 0; i < c->pages; i++)
        c->table[i] = i;
    for (int32_t i = c->pages; i-- > 1;) {
        int32_t j = (int32_t)rnd_below((uint32_t)i + 1), x = c->table[i];
        c->table[i] = c->table[j], c->table[j] = x;
    }
    c->n_bytes = (size_t)c->pages * c->layout.page_bytes;
    c->bytes = malloc(c->n_bytes);
    memset(c->bytes, 0xff, c->n_bytes); /* NaN wherever nothing was stored */
}

/* Stores positions [from, length) as one launch. */
static void store(cache *c, int32_t from, bool everywhere)
{
    const setup *s = &c->s;
    int32_t n = s->length - from;
    int32_t *pos = malloc((size_t)n * 4);
    for (int32_t i = 0; i < n; i++)
        pos[i] = from + i;
    size_t skip = (size_t)from * s->kv_heads * s->dim;
    rig_case k = {.args = {.op = LT_OP_KV_STORE, .n_src = 4, .name = "kv_store", .params.KV_STORE = {c->layout}}};
    k.args.src[0] = k.args.src[1] = view(LT_DTYPE_F32, 3, n, s->kv_heads, s->dim);
    k.args.src[2] = view(LT_DTYPE_I32, 1, n, 0, 0);
    k.args.src[3] = view(LT_DTYPE_I32, 1, c->entries, 0, 0);
    k.args.dst = view(LT_DTYPE_I8, 1, (int64_t)c->n_bytes, 0, 0);
    k.src[0] = c->k + skip, k.src[1] = c->v + skip, k.src[2] = pos, k.src[3] = c->table;
    for (int i = 0; i < 4; i++)
        k.src_bytes[i] = view_bytes(&k.args.src[i]);
    k.dst = c->bytes, k.dst_bytes = c->n_bytes;
    uint8_t *out = malloc(c->n_bytes);
    if (everywhere)
        rig_check(&k, "KV_STORE", out);
    else
        rig_run(&g_rig.device[0], &k, out);
    free(c->bytes);
    c->bytes = out;
    free(pos);
}

static float *random_sinks(int32_t heads, data_kind kind)
{
    static const float far[] = {60.0f, -300.0f, -INFINITY, 6.0f};
    float *x = rnd_floats((size_t)heads, kind);
    for (int32_t h = 0; h < heads; h++)
        if (rnd_below(6) == 0)
            x[h] = far[rnd_below(4)];
    return x;
}

static void cache_init(cache *c, const setup *s)
{
    *c = (cache){.s = *s};
    size_t kv = (size_t)s->length * s->kv_heads * s->dim;
    lay_out(c);
    c->k = rnd_floats(kv, s->data), c->v = rnd_floats(kv, s->data);
    c->q = rnd_floats((size_t)s->tokens * s->heads * s->dim, s->data);
    c->pos = malloc((size_t)s->tokens * 4);
    for (int32_t t = 0; t < s->tokens; t++)
        c->pos[t] = s->scattered ? (int32_t)rnd_below((uint32_t)s->length) : s->length - s->tokens + t;
    store(c, s->ring ? first_seen(s, s->length - s->tokens) / 256 * 256 : 0, c->n_bytes < (1 << 20) || rnd_below(8) == 0);
    c->c.args = (lt_op_args){.op = LT_OP_ATTENTION, .n_src = 4, .name = "attention"};
    c->c.args.params.ATTENTION = (lt_attention_params){
        .kv = c->layout, .heads = (uint32_t)s->heads, .window = (uint32_t)s->window, .scale = 1 / sqrtf((float)s->dim),
        .cap = s->cap};
    c->c.args.src[0] = c->c.args.dst = view(LT_DTYPE_F32, 3, s->tokens, s->heads, s->dim);
    c->c.args.src[1] = view(LT_DTYPE_I8, 1, (int64_t)c->n_bytes, 0, 0);
    c->c.args.src[2] = view(LT_DTYPE_I32, 1, s->tokens, 0, 0);
    c->c.args.src[3] = view(LT_DTYPE_I32, 1, c->entries, 0, 0);
    c->c.src[0] = c->q, c->c.src[1] = c->bytes, c->c.src[2] = c->pos, c->c.src[3] = c->table;
    if (s->sinks) {
        c->sinks = random_sinks(s->heads, s->data);
        c->c.args.n_src = 5;
        c->c.args.src[4] = view(LT_DTYPE_F32, 1, s->heads, 0, 0), c->c.src[4] = c->sinks;
    }
    for (uint32_t i = 0; i < c->c.args.n_src; i++)
        c->c.src_bytes[i] = view_bytes(&c->c.args.src[i]);
    c->c.dst_bytes = c->c.src_bytes[0];
    c->c.dst = c->q; /* any content */
    c->y = malloc(c->c.dst_bytes);
}

static void cache_free(cache *c)
{
    free(c->table), free(c->pos), free(c->q), free(c->k), free(c->v), free(c->bytes), free(c->y), free(c->sinks);
}

/* What a wrong implementation would do, for the planted bugs. */
typedef enum mutant {
    RIGHT, PAST_ONE_LESS, SEES_THE_FUTURE, WINDOW_ONE_MORE, HEADS_INTERLEAVED, NO_SCALE, PAGE_UNMERGED,
    VALUES_ARE_KEYS, CAP_IGNORED, CAP_BEFORE_SCALE, CAP_IS_A_CLAMP, SINK_IGNORED, SINK_OF_THE_KV_HEAD, SINK_CAPPED, SINK_SCALED
} mutant;

/* Keys or values of one head as float64: those given, or those in the cache. */
static double *rows64(const cache *c, bool value, int32_t head, bool stored, int32_t from)
{
    const setup *s = &c->s;
    double *out = malloc((size_t)s->length * s->dim * sizeof *out);
    float row[LT_HEAD_DIM_MAX];
    for (int32_t p = from; p < s->length; p++) {
        const float *x = (value ? c->v : c->k) + ((size_t)p * s->kv_heads + head) * s->dim;
        if (stored) {
            lt_dtype_to_f32(s->kv, c->bytes + address(c, value, head, p), row, (uint64_t)s->dim);
            x = row;
        }
        for (int32_t j = 0; j < s->dim; j++)
            out[(size_t)p * s->dim + j] = x[j];
    }
    return out;
}

static double cap64(double x, double cap, mutant m)
{
    if (cap == 0 || m == CAP_IGNORED)
        return x;
    return m == CAP_IS_A_CLAMP ? fmax(-cap, fmin(cap, x)) : cap * tanh(x / cap);
}

/* What the sink of a head adds to the softmax's sum, its largest score being *top; raises that where it is larger. */
static double sink64(const cache *c, int32_t h, mutant m, double *top)
{
    if (!c->sinks || m == SINK_IGNORED)
        return -INFINITY;
    double x = c->sinks[m == SINK_OF_THE_KV_HEAD ? h / (c->s.heads / c->s.kv_heads) : h];
    x = m == SINK_CAPPED ? cap64(x, c->s.cap, RIGHT) : m == SINK_SCALED ? x / sqrt(c->s.dim) : x;
    *top = fmax(*top, x);
    return x;
}

static void attend64(const cache *c, int32_t t, int32_t h, const double *k, const double *v, mutant m, double *out)
{
    const setup *s = &c->s;
    int32_t last = c->pos[t], first = first_seen(s, last), dim = s->dim;
    double w[2048], top = -INFINITY, sum = 0, scale = m == NO_SCALE ? 1 : 1 / sqrt(dim);
    last += m == SEES_THE_FUTURE && last + 1 < s->length;
    last -= m == PAST_ONE_LESS && last > first;
    first -= m == WINDOW_ONE_MORE && first > 0;
    if (m == PAGE_UNMERGED && last / 256 > first / 256)
        first = last / 256 * 256;
    for (int32_t p = first; p <= last; p++) {
        double dot = 0;
        for (int32_t j = 0; j < dim; j++)
            dot += c->q[((size_t)t * s->heads + h) * dim + j] * k[(size_t)p * dim + j];
        w[p] = m == CAP_BEFORE_SCALE ? cap64(dot, s->cap, m) * scale : cap64(dot * scale, s->cap, m);
        top = fmax(top, w[p]);
    }
    const double sink = sink64(c, h, m, &top);
    for (int32_t p = first; p <= last; p++)
        sum += w[p] = exp(w[p] - top);
    sum += exp(sink - top);
    for (int32_t j = 0; j < dim; j++) {
        double x = 0;
        for (int32_t p = first; p <= last; p++)
            x += w[p] * (m == VALUES_ARE_KEYS ? k : v)[(size_t)p * dim + j];
        out[j] = x / sum;
    }
}

static double error64(const cache *c, bool stored, mutant m)
{
    const setup *s = &c->s;
    int32_t from = s->ring ? first_seen(s, s->length - s->tokens) : 0;
    if (s->ring && m == WINDOW_ONE_MORE && from > 0)
        from--;
    double *want = malloc((size_t)s->tokens * s->heads * s->dim * sizeof *want);
    for (int32_t h = 0; h < s->heads; h++) {
        int32_t kv_head = m == HEADS_INTERLEAVED ? h % s->kv_heads : h / (s->heads / s->kv_heads);
        double *k = rows64(c, false, kv_head, stored, from), *v = rows64(c, true, kv_head, stored, from);
        for (int32_t t = 0; t < s->tokens; t++)
            attend64(c, t, h, k, v, m, want + ((size_t)t * s->heads + h) * s->dim);
        free(k), free(v);
    }
    double e = nmse(want, c->y, (size_t)s->tokens * s->heads * s->dim);
    free(want);
    return e;
}

#endif
