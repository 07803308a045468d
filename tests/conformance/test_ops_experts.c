/* The ops of a mixture of experts on every device: dtype by dtype, shape by shape, slice by slice. */
#include "weights_rig.h"

#define BOUND_EXACT 1e-12
#define BOUND_PROMPT_F16 1e-6  /* as of LINEAR over a prompt: test_ops_linear.c */
#define BOUND_PROMPT_BF16 1e-7
#define BOUND_PRODUCT 5e-4
#define BLANK 0x5a5a5a5au      /* what lies where nothing may be written */

/* Whether the device computes a prompt's product with such a weight in another order. */
static bool has_own_order(const rig_device *d, lt_dtype t)
{
    return strncmp(d->spec, "cuda", 4) == 0 && (t == LT_DTYPE_F16 || t == LT_DTYPE_BF16);
}

typedef struct shape {
    lt_dtype  t;
    int64_t   experts, rows, cols, tokens, k;
    bool      per_k;    /* a row of src0 for each (token, k) */
    bool      repeated; /* a token may name an expert twice */
    int64_t   pad;      /* 32: there is room between rows, and between experts */
    data_kind kind;
} shape;

typedef struct mix {
    shape    s;
    float   *x;  /* [tokens or tokens * k, cols] */
    uint8_t *w;
    void    *act, *blank;
    int32_t *ids;
    float   *y;
    rig_case c;
} mix;

static lt_view spread(lt_view v, int64_t pad) /* bytes between its rows */
{
    if (v.ndim == 3)
        v.stride[1] += pad, v.stride[0] = v.dim[1] * v.stride[1] + pad;
    else
        v.stride[0] += pad;
    return v;
}

static char *row_of(const lt_view *v, const void *base, int64_t t, int64_t k)
{
    return (char *)base + t * v->stride[0] + (v->ndim == 3 ? k * v->stride[1] : 0);
}

/* Rows, one behind the other, as v has them. */
static void *laid_out(const lt_view *v, const void *rows, size_t row_bytes)
{
    const int64_t each = v->ndim == 3 ? v->dim[1] : 1;
    char *out = malloc(view_bytes(v));
    memset(out, 0x5a, view_bytes(v));
    for (int64_t i = 0; i < v->dim[0] * each; i++)
        memcpy(row_of(v, out, i / each, i % each), (const char *)rows + (size_t)i * row_bytes, row_bytes);
    return out;
}

static int32_t *rnd_ids(const shape *s, int64_t stride)
{
    int32_t *ids = calloc((size_t)(s->tokens * stride), sizeof *ids), *all = malloc((size_t)s->experts * sizeof *all);
    for (int64_t t = 0; t < s->tokens; t++) {
        for (int32_t e = 0; e < s->experts; e++)
            all[e] = e;
        for (int64_t k = 0; k < s->k; k++) {
            uint32_t at = (s->repeated ? 0 : (uint32_t)k) + rnd_below((uint32_t)(s->experts - (s->repeated ? 0 : k)));
            int32_t e = all[at];
            ids[t * stride + k] = e;
            if (!s->repeated)
                all[at] = all[k], all[k] = e;
        }
    }
    free(all);
    return ids;
}

static void mix_init(mix *m, const shape *s)
{
    *m = (mix){.s = *s};
    const int64_t in = s->tokens * (s->per_k ? s->k : 1);
    const lt_dtype acts = is_quant(s->t) ? LT_DTYPE_Q8A : LT_DTYPE_F32;
    size_t bytes;
    uint64_t row;
    m->x = rnd_floats((size_t)(in * s->cols), s->kind);
    m->w = rnd_weight(s->t, s->experts * (s->rows + (s->pad > 0)), s->cols, s->kind == DATA_WILD, &m->c.src_bytes[1]);
    void *rows = activations(s->t, m->x, in, s->cols, &bytes);
    assert_true(lt_dtype_row_bytes(acts, (uint64_t)s->cols, &row));
    lt_op_args *a = &m->c.args;
    *a = (lt_op_args){.op = LT_OP_EXPERT_LINEAR, .n_src = 3, .name = "experts"};
    a->src[0] = s->per_k ? view(acts, 3, s->tokens, s->k, s->cols) : view(acts, 2, s->tokens, s->cols, 0);
    a->src[0] = spread(a->src[0], s->pad * 4);
    a->src[1] = view(s->t, 3, s->experts, s->rows, s->cols);
    a->src[1].stride[0] += s->pad ? a->src[1].stride[1] : 0; /* a row between experts */
    a->src[2] = spread(view(LT_DTYPE_I32, 2, s->tokens, s->k, 0), s->pad / 32 * 4);
    a->dst = spread(view(LT_DTYPE_F32, 3, s->tokens, s->k, s->rows), s->pad / 32 * 12);
    m->act = laid_out(&a->src[0], rows, row);
    m->ids = rnd_ids(s, a->src[2].stride[0] / 4);
    m->c.src[0] = m->act, m->c.src[1] = m->w, m->c.src[2] = m->ids;
    m->c.src_bytes[0] = view_bytes(&a->src[0]), m->c.src_bytes[2] = view_bytes(&a->src[2]);
    m->c.dst_bytes = view_bytes(&a->dst);
    m->c.dst = m->blank = malloc(m->c.dst_bytes);
    memset(m->blank, 0x5a, m->c.dst_bytes);
    m->y = malloc(m->c.dst_bytes);
    free(rows);
}

static void mix_free(mix *m) { free(m->x), free(m->w), free(m->act), free(m->blank), free(m->ids), free(m->y); }

static const char *mix_name(const shape *s)
{
    static char name[192];
    snprintf(name, sizeof name, "EXPERT_LINEAR %s, %lld of %lld experts, %lld rows, %lld columns, %lld tokens%s%s, %s data",
             lt_dtype_get(s->t)->name, (long long)s->k, (long long)s->experts, (long long)s->rows, (long long)s->cols,
             (long long)s->tokens, s->per_k ? ", a row per expert" : "", s->pad ? ", strided" : "", data_names[s->kind]);
    return name;
}

static int32_t id_of(const mix *m, int64_t t, int64_t k) { return m->ids[t * m->c.args.src[2].stride[0] / 4 + k]; }
static float *out_of(const mix *m, const void *base, int64_t t, int64_t k) { return (float *)(void *)row_of(&m->c.args.dst, base, t, k); }

/* LINEAR of the one pair, by the same device; out[rows]. */
static void run_linear(rig_device *d, const mix *m, int64_t t, int64_t k, float *out)
{
    const lt_view *x = &m->c.args.src[0], *w = &m->c.args.src[1];
    rig_case c = {.args = {.op = LT_OP_LINEAR, .n_src = 2, .name = "linear", .prefill = m->c.args.prefill}};
    c.args.src[0] = view(x->dtype, 2, 1, m->s.cols, 0), c.args.src[1] = view(w->dtype, 2, m->s.rows, m->s.cols, 0);
    c.args.dst = view(LT_DTYPE_F32, 2, 1, m->s.rows, 0);
    c.src[0] = row_of(x, m->act, t, k), c.src[1] = m->w + id_of(m, t, k) * w->stride[0], c.dst = m->blank;
    for (int i = 0; i < 2; i++)
        c.src_bytes[i] = view_bytes(&c.args.src[i]);
    c.dst_bytes = (size_t)m->s.rows * 4;
    rig_run(d, &c, out);
}

static void check_shape(const shape *s)
{
    mix m;
    mix_init(&m, s);
    rig_check(&m.c, mix_name(s), m.y);
    mix_free(&m);
}

/* ---- bits ---- */

static const int64_t columns[] = {32, 64, 96, 256, 288, 576, 768, 1536, 1, 7, 33, 255, 257, 300};
#define N_COLUMNS ((int64_t)(sizeof columns / sizeof *columns))

static void every_dtype_and_shape_is_bit_equal(void **state)
{
    (void)state;
    static const int64_t experts[] = {1, 2, 3, 4, 8, 11, 16, 32, 33}, tokens[] = {1, 2, 3, 5, 8, 17, 33, 64, 70},
                         rows[] = {1, 3, 8, 11, 16, 17, 31, 40, 67};
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int64_t n = 0; is_weight((lt_dtype)t) && n < 9 * 8; n++) {
            shape s = {.t = (lt_dtype)t, .experts = experts[n % 9], .tokens = tokens[(n / 9 + n + t) % 9], .rows = rows[(n * 5 + n / 9) % 9],
                       .cols = columns[(n * 3 + t) % N_COLUMNS], .k = 1 + n % 8, .per_k = n / 2 % 2, .repeated = n % 7 == 0,
                       .pad = n % 3 ? 0 : 32, .kind = (data_kind)(n % DATA_KINDS)};
            uint64_t bytes;
            while (!lt_dtype_row_bytes(s.t, (uint64_t)s.cols, &bytes))
                s.cols = columns[rnd_below((uint32_t)N_COLUMNS)];
            s.k = s.k < s.experts || s.repeated ? s.k : s.experts;
            while (s.tokens > 1 && s.tokens * s.k * s.rows * s.cols > 500000)
                s.tokens--;
            check_shape(&s);
        }
}

/* One token of every number of experts; more tokens than a device takes at once; all of them with one expert. */
static void few_and_many_tokens_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t))
            continue;
        for (int64_t k = 1; k <= 8; k++)
            check_shape(&(shape){.t = (lt_dtype)t, .experts = 8 + k, .rows = 41 + k * 7, .cols = 512, .tokens = 1, .k = k, .per_k = k % 2, .kind = DATA_HEAVY});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 7, .rows = 19, .cols = 256, .tokens = 213, .k = 3, .per_k = true});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 33, .rows = 9, .cols = 256, .tokens = 300, .k = 8});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 1, .rows = 33, .cols = 256, .tokens = 230, .k = 1, .pad = 32});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 3, .rows = 21, .cols = 256, .tokens = 67, .k = 4, .per_k = true, .repeated = true});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 128, .rows = 5, .cols = 256, .tokens = 31, .k = 8});
    }
}

/* 2880 is no multiple of 256; more rows than a thread takes at a time. */
static void rows_of_a_real_model_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t))
            continue;
        const int64_t cols = lt_dtype_get((lt_dtype)t)->block_elems == 256 ? 2048 : 2880;
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 5, .rows = 200, .cols = cols, .tokens = 1, .k = 4});
        check_shape(&(shape){.t = (lt_dtype)t, .experts = 4, .rows = 72, .cols = cols, .tokens = 7, .k = 2, .per_k = true});
    }
    check_shape(&(shape){.t = LT_DTYPE_MXFP4, .experts = 32, .rows = 96, .cols = 2880, .tokens = 40, .k = 4, .per_k = true});
    check_shape(&(shape){.t = LT_DTYPE_Q4_K, .experts = 3, .rows = 2880, .cols = 256, .tokens = 1, .k = 2});
    check_shape(&(shape){.t = LT_DTYPE_F16, .experts = 2, .rows = 64, .cols = 2880, .tokens = 140, .k = 1});
    check_shape(&(shape){.t = LT_DTYPE_BF16, .experts = 2, .rows = 7, .cols = 16390, .tokens = 70, .k = 1});
}

/* Page-locked host memory in place of the device's, and an address that is no multiple of 16. */
static void weights_read_in_place_and_at_odd_addresses_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int n = 0; is_weight((lt_dtype)t) && n < 4; n++) {
            mix m;
            const shape s = {.t = (lt_dtype)t, .experts = 6, .rows = 37, .cols = 1280, .tokens = n % 2 ? 9 : 1, .k = 3, .per_k = n % 2};
            mix_init(&m, &s);
            m.c.in_place = n < 2;
            uint8_t *moved = calloc(1, m.c.src_bytes[1] + 8);
            memcpy(moved + 8, m.w, m.c.src_bytes[1]);
            if (n >= 2)
                m.c.src[1] = moved, m.c.src_bytes[1] += 8, m.c.args.src[1].addr = 8;
            rig_check(&m.c, mix_name(&s), m.y);
            free(moved);
            mix_free(&m);
        }
}

/* ---- what the whole is made of ---- */

static void every_pair_has_the_bits_of_linear(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int n = 0; is_weight((lt_dtype)t) && n < 4; n++) {
            mix m;
            const shape s = {.t = (lt_dtype)t, .experts = 5, .rows = 29, .cols = 512, .tokens = n / 2 ? 1 : 21, .k = 3, .per_k = n % 2, .pad = n % 2 * 32};
            float *one = malloc((size_t)s.rows * 4);
            mix_init(&m, &s);
            for (int p = 0; p < 2; p++) { /* of a prompt too: there in the device's own order */
                m.c.args.prefill = p;
                for (int d = 0, end = rig_share(); d < end; d++) {
                    rig_run(&g_rig.device[d], &m.c, m.y);
                    for (int64_t i = 0; i < s.tokens * s.k; i++) {
                        run_linear(&g_rig.device[d], &m, i / s.k, i % s.k, one);
                        rig_same(mix_name(&s), g_rig.device[d].spec, &m.c.args.dst, one, out_of(&m, m.y, i / s.k, i % s.k), (size_t)s.rows * 4);
                    }
                }
            }
            free(one);
            mix_free(&m);
        }
}

/* Launches for the experts between the cuts, one after another: what is done equals the whole, the rest is as it was. */
static void check_slices(rig_device *d, const mix *m, const int64_t *cuts, int n)
{
    const lt_view *w = &m->c.args.src[1];
    float *got = malloc(m->c.dst_bytes), *next = malloc(m->c.dst_bytes);
    memset(got, 0x5a, m->c.dst_bytes);
    for (int i = 0; i + 1 < n; i++) {
        rig_case c = m->c;
        c.args.src[1].dim[0] = cuts[i + 1] - cuts[i];
        c.args.params.EXPERT_LINEAR.first = (uint32_t)cuts[i];
        c.src[1] = m->w + cuts[i] * w->stride[0], c.src_bytes[1] = (size_t)(c.args.src[1].dim[0] * w->stride[0]);
        c.dst = got;
        rig_run(d, &c, next);
        memcpy(got, next, m->c.dst_bytes);
        for (int64_t p = 0; p < m->s.tokens * m->s.k; p++) {
            const int64_t e = id_of(m, p / m->s.k, p % m->s.k);
            const bool done = e >= cuts[0] && e < cuts[i + 1];
            const float *y = out_of(m, got, p / m->s.k, p % m->s.k), *want = out_of(m, m->y, p / m->s.k, p % m->s.k);
            for (int64_t r = 0; r < m->s.rows; r++)
                if (lt__f32_bits(y[r]) != (done ? lt__f32_bits(want[r]) : BLANK))
                    fail_msg("%s: %s in slices: row %lld of token %lld, expert %lld, after the slice from expert %lld: %08x, expected %08x",
                             d->spec, mix_name(&m->s), (long long)r, (long long)(p / m->s.k), (long long)e, (long long)cuts[i],
                             lt__f32_bits(y[r]), done ? lt__f32_bits(want[r]) : BLANK);
        }
    }
    free(got), free(next);
}

static void slices_equal_the_whole(void **state)
{
    (void)state;
    static const int64_t one[] = {0, 9}, two[] = {0, 4, 9}, many[] = {0, 1, 2, 3, 5, 6, 7, 8, 9}, middle[] = {3, 5};
    static const struct { const int64_t *cuts; int n; } ways[] = {{one, 2}, {two, 3}, {many, 9}, {middle, 2}};
    static const int64_t tokens[] = {1, 9, 70};
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int n = 0; is_weight((lt_dtype)t) && n < 3; n++)
            for (int prompt = 0; prompt < 2; prompt++) {
                mix m;
                const shape s = {.t = (lt_dtype)t, .experts = 9, .rows = 27, .cols = 256, .tokens = tokens[n], .k = 1 + (n + t) % 4,
                                 .per_k = (n + t) % 2, .pad = t % 3 ? 0 : 32};
                mix_init(&m, &s);
                m.c.args.prefill = prompt;
                for (int d = 0, end = rig_share(); d < end; d++) {
                    rig_run(&g_rig.device[prompt ? d : 0], &m.c, m.y); /* of a prompt: against itself */
                    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
                        check_slices(&g_rig.device[d], &m, ways[i].cuts, ways[i].n);
                }
                mix_free(&m);
            }
}

/* Any number that is no expert of the slice leaves its row alone. */
static void ids_of_no_expert_are_passed_over(void **state)
{
    (void)state;
    static const int32_t none[] = {-1, INT32_MIN, INT32_MAX, 11, 17, 10};
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int n = 0; is_weight((lt_dtype)t) && n < 4; n++) {
            mix m;
            const shape s = {.t = (lt_dtype)t, .experts = 6, .rows = 13, .cols = 256, .tokens = n % 2 ? 40 : 1, .k = 4, .per_k = n / 2, .pad = 32};
            mix_init(&m, &s);
            m.c.args.params.EXPERT_LINEAR.first = 11;
            for (int64_t i = 0; i < s.tokens; i++)
                for (int64_t k = 0; k < 4; k++)
                    m.ids[i * m.c.args.src[2].stride[0] / 4 + k] = k % 2 ? none[rnd_below(6)] : 11 + (int32_t)rnd_below(6);
            rig_check(&m.c, mix_name(&s), m.y);
            for (int64_t p = 0; p < s.tokens * s.k; p++) {
                const int32_t e = id_of(&m, p / 4, p % 4);
                for (int64_t r = 0; r < s.rows; r++)
                    assert_int_equal(lt__f32_bits(out_of(&m, m.y, p / 4, p % 4)[r]) == BLANK, e < 11 || e > 16);
            }
            for (int64_t i = 0; i < s.tokens * s.k; i++) /* a slice that nobody chose */
                m.ids[i / 4 * m.c.args.src[2].stride[0] / 4 + i % 4] = 17;
            rig_check(&m.c, mix_name(&s), m.y);
            assert_memory_equal(m.y, m.blank, m.c.dst_bytes);
            mix_free(&m);
        }
}

/* ---- error ---- */

typedef enum mutant { RIGHT, NEXT_EXPERT, EXPERT_OF_THE_FIRST, ROW_OF_THE_FIRST, NEXT_TOKEN, EXPERTS_SWAPPED } mutant;

/* Of one pair; w and x as floats. */
static double pair_error(const mix *m, const float *w, const float *x, int64_t t, int64_t k, mutant mu)
{
    const shape *s = &m->s;
    double *want = calloc((size_t)s->rows, sizeof *want);
    const int64_t at = mu == EXPERT_OF_THE_FIRST ? 0 : mu == EXPERTS_SWAPPED ? s->k - 1 - k : k;
    const int64_t from = mu == NEXT_TOKEN ? (t + 1) % s->tokens : t;
    const int64_t e = (id_of(m, t, at) + (mu == NEXT_EXPERT)) % s->experts;
    const float *row = x + (s->per_k ? from * s->k + (mu == ROW_OF_THE_FIRST ? 0 : k) : from) * s->cols;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t i = 0; i < s->cols; i++)
            want[r] += (double)w[(e * s->rows + r) * s->cols + i] * row[i];
    const double error = nmse(want, out_of(m, m->y, t, k), (size_t)s->rows);
    free(want);
    return error;
}

/* The worst pair, against the x as given and as the product reads it. */
static void mix_errors(const mix *m, mutant mu, double *whole, double *sum_only)
{
    const shape *s = &m->s;
    const size_t n = (size_t)(s->experts * s->rows * s->cols);
    const int64_t in = s->tokens * (s->per_k ? s->k : 1), each = s->per_k ? s->k : 1;
    float *w = malloc(n * 4), *x = malloc((size_t)(in * s->cols) * 4);
    lt_dtype_to_f32(s->t, m->w, w, n);
    for (int64_t i = 0; i < in; i++)
        lt_dtype_to_f32(m->c.args.src[0].dtype, row_of(&m->c.args.src[0], m->act, i / each, i % each), x + i * s->cols, (uint64_t)s->cols);
    *whole = *sum_only = 0;
    for (int64_t p = 0; p < s->tokens * s->k; p++) {
        *sum_only = fmax(*sum_only, pair_error(m, w, x, p / s->k, p % s->k, mu));
        if (is_quant(s->t))
            *whole = fmax(*whole, pair_error(m, w, m->x, p / s->k, p % s->k, mu));
    }
    if (!is_quant(s->t))
        *whole = *sum_only;
    free(w), free(x);
}

static void products_hold_their_bounds(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        double worst_whole = 0, worst_sum = 0;
        for (int n = 0; is_weight((lt_dtype)t) && n < 4; n++) {
            mix m;
            double whole, sum_only;
            const shape s = {.t = (lt_dtype)t, .experts = 6, .rows = 61, .cols = 256 << n % 2, .tokens = 7, .k = 3, .per_k = n / 2};
            mix_init(&m, &s);
            rig_check(&m.c, mix_name(&s), m.y);
            mix_errors(&m, RIGHT, &whole, &sum_only);
            assert_within(mix_name(&s), sum_only, BOUND_EXACT);
            assert_within(mix_name(&s), whole, is_quant(s.t) ? BOUND_PRODUCT : BOUND_EXACT);
            worst_whole = fmax(worst_whole, whole), worst_sum = fmax(worst_sum, sum_only);
            mix_free(&m);
        }
        if (is_weight((lt_dtype)t))
            print_message("EXPERT_LINEAR %-6s NMSE %.2g with quantisation of x, %.2g of the sum alone\n", lt_dtype_get((lt_dtype)t)->name,
                          worst_whole, worst_sum);
    }
}

static void planted_bugs_are_caught(void **state)
{
    (void)state;
    static const struct { mutant mu; bool per_k; const char *bug; } bugs[] = {
        {NEXT_EXPERT, false, "the slice begins one expert further on"}, {EXPERT_OF_THE_FIRST, false, "every k by the first one's expert"},
        {EXPERTS_SWAPPED, true, "experts in the other order"},          {ROW_OF_THE_FIRST, true, "the first k's row for all"},
        {NEXT_TOKEN, false, "the row of the next token"},
    };
    for (size_t i = 0; i < 3 * sizeof bugs / sizeof *bugs; i++) {
        static const lt_dtype types[] = {LT_DTYPE_MXFP4, LT_DTYPE_Q4_K, LT_DTYPE_BF16};
        mix m;
        double whole, sum_only;
        mix_init(&m, &(shape){.t = types[i % 3], .experts = 6, .rows = 61, .cols = 256, .tokens = 5, .k = 4, .per_k = bugs[i / 3].per_k});
        rig_run(&g_rig.device[g_rig.n - 1], &m.c, m.y);
        mix_errors(&m, RIGHT, &whole, &sum_only);
        assert_within("before the bug", sum_only, BOUND_EXACT);
        mix_errors(&m, bugs[i / 3].mu, &whole, &sum_only);
        assert_caught(bugs[i / 3].bug, whole, BOUND_PRODUCT);
        mix_free(&m);
    }
}

/* A prompt's product with half weights may have an order of its own; what is wrong shows against float64. */
static void prompts_hold_their_bounds(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{61, 256, 9, 5}, {128, 512, 70, 2}, {70, 1000, 65, 4}, {257, 72, 33, 1}, {1, 8, 3, 2}, {64, 300, 210, 3}};
    for (int i = 0; i < 2 * 6; i++) {
        const int64_t *n = shapes[i / 2];
        const shape s = {.t = i % 2 ? LT_DTYPE_BF16 : LT_DTYPE_F16, .experts = 6, .rows = n[0], .cols = n[1], .tokens = n[2], .k = n[3], .per_k = i / 2 % 2};
        const double bound = i % 2 ? BOUND_PROMPT_BF16 : BOUND_PROMPT_F16;
        mix m;
        double whole, sum_only, worst = 0;
        mix_init(&m, &s);
        m.c.args.prefill = true;
        for (int64_t r = 0; r < s.tokens * (s.per_k ? s.k : 1); r++) /* rows of very different size: f16 alone would overflow */
            for (int64_t c = 0; c < s.cols; c++)
                ((float *)m.act)[r * s.cols + c] *= r % 3 == 1 ? 1e7f : r % 3 == 2 ? 1e-9f : 1;
        float *want = malloc(m.c.dst_bytes);
        rig_run(&g_rig.device[0], &m.c, want);
        for (int d = 0, end = rig_share(); d < end; d++) {
            rig_run(&g_rig.device[d], &m.c, m.y);
            if (!has_own_order(&g_rig.device[d], s.t))
                rig_same(mix_name(&s), g_rig.device[d].spec, &m.c.args.dst, want, m.y, m.c.dst_bytes);
            if (d > 0 && memcmp(want, m.y, m.c.dst_bytes) == 0)
                continue; /* the reference was within */
            mix_errors(&m, RIGHT, &whole, &sum_only);
            assert_within(mix_name(&s), sum_only, bound);
            worst = fmax(worst, sum_only);
        }
        mix_errors(&m, NEXT_EXPERT, &whole, &sum_only);
        assert_caught("experts of a prompt one further on", sum_only, bound);
        print_message("%s, a prompt: NMSE of a pair %.2g at worst\n", mix_name(&s), worst);
        free(want);
        mix_free(&m);
    }
}

/* What is not finite stays so, and in its own row. */
static void prompts_carry_what_is_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 6; n++) {
        const shape s = {.t = n % 2 ? LT_DTYPE_BF16 : LT_DTYPE_F16, .experts = 4, .rows = 33, .cols = 520, .tokens = 5, .k = 2, .per_k = true};
        mix m;
        mix_init(&m, &s);
        m.c.args.prefill = true;
        ((float *)m.act)[3 * 520 + 519 - n] = bad[n / 2]; /* token 1, k 1 */
        for (int d = 0; d < g_rig.n; d++) {
            rig_run(&g_rig.device[d], &m.c, m.y);
            for (int64_t i = 0; i < 10 * 33; i++)
                if (isfinite(m.y[i]) == (i / 33 == 3))
                    fail_msg("%s: %g in token 1, k 1: output %lld of pair %lld is %g", g_rig.device[d].spec, (double)bad[n / 2],
                             (long long)(i % 33), (long long)(i / 33), (double)m.y[i]);
        }
        mix_free(&m);
    }
}

/* ---- QUANTIZE of a row for each (token, k) ---- */

static void quantize_of_three_dimensions(void **state)
{
    (void)state;
    for (int n = 0; n < 8 * DATA_KINDS; n++) {
        const int64_t tokens = 1 + n * 7 % 19, k = 1 + n % 8, cols = 32 * (1 + n * n % 67), pad = n % 3 * 32;
        lt_view in = spread(view(LT_DTYPE_F32, 3, tokens, k, cols), pad * 4), out = spread(view(LT_DTYPE_Q8A, 3, tokens, k, cols), pad);
        float *x = rnd_floats(view_bytes(&in) / 4, (data_kind)(n % DATA_KINDS));
        rig_case c = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize", .src = {in}, .dst = out},
                      .src = {x}, .src_bytes = {view_bytes(&in)}, .dst_bytes = view_bytes(&out)};
        uint8_t *blank = malloc(c.dst_bytes), *y = malloc(c.dst_bytes), one[67 * 32 * 2];
        memset(blank, 0x5a, c.dst_bytes);
        c.dst = blank;
        rig_check(&c, "QUANTIZE [T,K,C]", y);
        for (int64_t p = 0; p < tokens * k; p++) { /* has the bits of that row by itself */
            rig_case r = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize"}};
            r.args.src[0] = view(LT_DTYPE_F32, 2, 1, cols, 0), r.args.dst = view(LT_DTYPE_Q8A, 2, 1, cols, 0);
            r.src[0] = row_of(&in, x, p / k, p % k), r.src_bytes[0] = (size_t)cols * 4;
            r.dst = blank, r.dst_bytes = view_bytes(&r.args.dst);
            rig_run(&g_rig.device[0], &r, one);
            assert_memory_equal(one, row_of(&out, y, p / k, p % k), r.dst_bytes);
        }
        free(x), free(blank), free(y);
    }
}

/* ---- the ops about the products ---- */

/* One launch of up to three sources; src1 and src2 belong to the caller. */
typedef struct launch {
    rig_case c;
    float   *x;
    void    *y, *blank;
} launch;

static void launch_init(launch *l, lt_op op, const lt_view *src0, const lt_view *dst, data_kind kind, bool in_place)
{
    *l = (launch){.c.args = {.op = op, .n_src = 1, .name = lt_op_get(op)->name, .src = {*src0}, .dst = *dst}};
    l->c.src_bytes[0] = view_bytes(src0), l->c.dst_bytes = view_bytes(dst);
    l->x = rnd_floats(l->c.src_bytes[0] / 4, kind);
    l->blank = malloc(l->c.dst_bytes), l->y = malloc(l->c.dst_bytes);
    memset(l->blank, 0x5a, l->c.dst_bytes);
    l->c.dst = in_place ? (void *)l->x : l->blank;
    l->c.src[0] = in_place ? NULL : l->x;
}
static void launch_source(launch *l, const lt_view *v, const void *data)
{
    const uint32_t i = l->c.args.n_src++;
    l->c.args.src[i] = *v, l->c.src[i] = data, l->c.src_bytes[i] = view_bytes(v);
}
static void launch_free(launch *l) { free(l->x), free(l->y), free(l->blank); }

static const float *floats_of(const lt_view *v, const void *base, int64_t t, int64_t k) { return (const float *)(const void *)row_of(v, base, t, k); }
static const int32_t *ids_of(const lt_view *v, const void *base, int64_t t) { return (const int32_t *)(const void *)row_of(v, base, t, 0); }

/* Scores with ties: small integers, some of them NaN, infinite or of either zero. */
static void make_ties(float *x, size_t n, bool wild)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    for (size_t i = 0; i < n; i++)
        x[i] = wild && rnd_below(3) == 0 ? special[rnd_below(5)] : (float)rnd_below(5) - 2;
}

typedef enum top_mutant { TOP_RIGHT, HIGHER_COLUMN_FIRST, NAN_FIRST, NAN_EQUALS, ZEROS_DIFFER, TOP_MUTANTS } top_mutant;

static bool before(const float *x, int32_t a, int32_t b, top_mutant mu)
{
    const bool na = isnan(x[a]), nb = isnan(x[b]);
    if (na != nb && mu != NAN_EQUALS)
        return mu == NAN_FIRST ? na : nb;
    if (mu == ZEROS_DIFFER && x[a] == 0 && x[b] == 0 && signbit(x[a]) != signbit(x[b]))
        return signbit(x[b]);
    if (!na && !nb && x[a] != x[b])
        return x[a] > x[b];
    return mu == HIGHER_COLUMN_FIRST ? a > b : a < b;
}

/* By how many columns go before each. */
static void top_expected(const float *x, int64_t n, int64_t k, int32_t *out, top_mutant mu)
{
    for (int32_t i = 0; i < n; i++) {
        int64_t rank = 0;
        for (int32_t j = 0; j < n; j++)
            rank += j != i && before(x, j, i, mu);
        if (rank < k)
            out[rank] = i;
    }
}

static const int64_t experts_of[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 60, 64, 128, 300};

static void top_k(void **state)
{
    (void)state;
    uint64_t caught[TOP_MUTANTS] = {0};
    for (int n = 0; n < 18 * (DATA_KINDS + 2); n++) {
        const int kind = n / 18;
        const int64_t experts = experts_of[n % 18], most = n % 5 ? 8 : experts, k = experts < most ? experts : n % 5 ? 1 + n % 8 : most;
        const int64_t picks = k < experts ? k : experts, tokens = n % 11 == 0 ? 213 : 1 + n * 13 % 70, pad = n % 3 * 4;
        lt_view x = spread(view(LT_DTYPE_F32, 2, tokens, experts, 0), pad), y = spread(view(LT_DTYPE_I32, 2, tokens, picks, 0), pad * 2);
        launch l;
        launch_init(&l, LT_OP_TOP_K, &x, &y, kind < DATA_KINDS ? (data_kind)kind : DATA_NORMAL, false);
        l.c.args.params.TOP_K.k = (uint32_t)picks;
        if (kind >= DATA_KINDS)
            make_ties(l.x, l.c.src_bytes[0] / 4, kind > DATA_KINDS);
        if (n % 18 == 12) /* a token of which nothing is a number */
            for (int64_t i = 0; i < experts; i++)
                l.x[i] = NAN;
        rig_check(&l.c, "TOP_K", l.y);
        for (int64_t t = 0; t < tokens; t++)
            for (int mu = 0; mu < TOP_MUTANTS; mu++) {
                int32_t want[300] = {0};
                top_expected(floats_of(&x, l.x, t, 0), experts, picks, want, (top_mutant)mu);
                const bool same = memcmp(want, ids_of(&y, l.y, t), (size_t)picks * 4) == 0;
                if (mu == TOP_RIGHT && !same)
                    fail_msg("TOP_K: %lld of %lld columns of token %lld are other ones than by counting", (long long)picks, (long long)experts, (long long)t);
                caught[mu] += !same;
            }
        launch_free(&l);
    }
    for (int mu = 1; mu < TOP_MUTANTS; mu++)
        assert_true(caught[mu] > 20);
    print_message("TOP_K: planted orders of ties, NaN and zeros show in %llu, %llu, %llu and %llu rows\n", (unsigned long long)caught[1],
                  (unsigned long long)caught[2], (unsigned long long)caught[3], (unsigned long long)caught[4]);
}

typedef enum share_mutant { SHARE_RIGHT, SUM_OF_THE_OTHERS, NO_EXP, SHARES_IN_COLUMN_ORDER, NOT_NORMALISED } share_mutant;

static double share_error(const launch *l, const int32_t *ids, share_mutant mu)
{
    const lt_view *x = &l->c.args.src[0], *iv = &l->c.args.src[1], *y = &l->c.args.dst;
    const int64_t n = x->dim[1], k = y->dim[1];
    const bool all = l->c.args.params.TOP_SHARE.all != (mu == SUM_OF_THE_OTHERS);
    double worst = 0, want[300];
    for (int64_t t = 0; t < x->dim[0]; t++) {
        const float *s = floats_of(x, l->x, t, 0);
        const int32_t *id = ids_of(iv, ids, t);
        double sum = 0, max = -INFINITY;
        for (int64_t i = 0; i < (all ? n : k); i++)
            max = fmax(max, s[all ? i : id[i]]);
        for (int64_t i = 0; i < (all ? n : k); i++)
            sum += mu == NO_EXP ? s[all ? i : id[i]] : exp(s[all ? i : id[i]] - max);
        for (int64_t i = 0; i < k; i++) {
            const double v = s[mu == SHARES_IN_COLUMN_ORDER ? i : id[i]];
            want[i] = (mu == NO_EXP ? v : exp(v - max)) / (mu == NOT_NORMALISED ? 1 : sum);
        }
        worst = fmax(worst, nmse(want, floats_of(y, l->y, t, 0), (size_t)k));
    }
    return worst;
}

/* ids: the best ones, as the error is relative to the largest share; or any, repeated ones too. */
static int32_t *share_ids(const launch *l, const lt_view *v, bool best)
{
    const lt_view *x = &l->c.args.src[0];
    int32_t *ids = calloc(view_bytes(v) / 4, 4);
    for (int64_t t = 0; t < v->dim[0]; t++) {
        int32_t *row = (int32_t *)(void *)row_of(v, ids, t, 0);
        top_expected(floats_of(x, l->x, t, 0), x->dim[1], v->dim[1], row, TOP_RIGHT);
        for (int64_t k = 0; !best && k < v->dim[1]; k++)
            row[k] = (int32_t)rnd_below((uint32_t)x->dim[1]);
    }
    return ids;
}

static void top_share(void **state)
{
    (void)state;
    for (int n = 0; n < 18 * DATA_KINDS * 2; n++) {
        const data_kind kind = (data_kind)(n / 18 % DATA_KINDS);
        const int64_t experts = experts_of[n % 18], k = n % 4 == 3 || experts < 8 ? experts : 1 + n % 8, tokens = n % 11 == 0 ? 213 : 1 + n * 13 % 70;
        const bool best = n % 3 != 0;
        lt_view x = spread(view(LT_DTYPE_F32, 2, tokens, experts, 0), n % 3 * 4), i = spread(view(LT_DTYPE_I32, 2, tokens, k, 0), n % 2 * 8),
                y = spread(view(LT_DTYPE_F32, 2, tokens, k, 0), n % 5 * 4);
        launch l;
        launch_init(&l, LT_OP_TOP_SHARE, &x, &y, kind, false);
        int32_t *ids = share_ids(&l, &i, best);
        launch_source(&l, &i, ids);
        l.c.args.params.TOP_SHARE.all = n / 18 / DATA_KINDS;
        rig_check(&l.c, "TOP_SHARE", l.y);
        if (kind <= DATA_ZEROS && best)
            assert_within("TOP_SHARE", share_error(&l, ids, SHARE_RIGHT), BOUND_EXACT);
        if (kind == DATA_NORMAL && best && experts == 33) {
            assert_caught("shares: the sum over the others", share_error(&l, ids, SUM_OF_THE_OTHERS), BOUND_EXACT);
            assert_caught("shares: scores for their exp", share_error(&l, ids, NO_EXP), BOUND_EXACT);
            assert_caught("shares: of the first columns", share_error(&l, ids, SHARES_IN_COLUMN_ORDER), BOUND_EXACT);
            assert_caught("shares: no division by the sum", share_error(&l, ids, NOT_NORMALISED), BOUND_EXACT);
        }
        free(ids);
        launch_free(&l);
    }
}

static const int64_t widths[] = {1, 7, 8, 31, 64, 96, 255, 256, 257, 576, 1023, 1024, 1025, 2048, 2880};
#define N_WIDTHS 15

/* off: the bias of so many experts further on; -1 of the first for all. */
static double bias_error(const launch *l, const float *x, const float *b, const int32_t *ids, int off)
{
    const lt_view *v = l->c.args.src, *y = &l->c.args.dst;
    double worst = 0, want[2880];
    for (int64_t p = 0; p < y->dim[0] * y->dim[1]; p++) {
        const int64_t t = p / y->dim[1], k = p % y->dim[1], e = off < 0 ? 0 : (ids_of(&v[2], ids, t)[k] + off) % v[1].dim[0];
        for (int64_t i = 0; i < y->dim[2]; i++)
            want[i] = (double)floats_of(&v[0], x, t, k)[i] + floats_of(&v[1], b, e, 0)[i];
        worst = fmax(worst, nmse(want, floats_of(y, l->y, t, k), (size_t)y->dim[2]));
    }
    return worst;
}

static void expert_bias(void **state)
{
    (void)state;
    for (int n = 0; n < N_WIDTHS * DATA_KINDS * 2; n++) {
        const data_kind kind = (data_kind)(n / N_WIDTHS % DATA_KINDS);
        const int64_t cols = widths[n % N_WIDTHS], experts = experts_of[(n + n / N_WIDTHS) % 14], k = 1 + n % 8, tokens = n % 17 == 0 ? 201 : 1 + n * 5 % 23;
        const bool in_place = n % 2;
        lt_view x = spread(view(LT_DTYPE_F32, 3, tokens, k, cols), n % 3 * 4), b = spread(view(LT_DTYPE_F32, 2, experts, cols, 0), n % 4 * 4),
                i = spread(view(LT_DTYPE_I32, 2, tokens, k, 0), n % 5 * 4), y = spread(view(LT_DTYPE_F32, 3, tokens, k, cols), n % 7 * 4);
        launch l;
        launch_init(&l, LT_OP_EXPERT_BIAS, &x, in_place ? &x : &y, kind, in_place);
        float *bias = rnd_floats(view_bytes(&b) / 4, kind);
        int32_t *ids = rnd_ids(&(shape){.experts = experts, .tokens = tokens, .k = k, .repeated = true}, i.stride[0] / 4);
        launch_source(&l, &b, bias), launch_source(&l, &i, ids);
        rig_check(&l.c, "EXPERT_BIAS", l.y);
        if (kind <= DATA_HEAVY)
            assert_within("EXPERT_BIAS", bias_error(&l, l.x, bias, ids, 0), BOUND_EXACT);
        if (kind == DATA_NORMAL && experts > 1 && cols == 576) {
            assert_caught("bias of the next expert", bias_error(&l, l.x, bias, ids, 1), BOUND_EXACT);
            assert_caught("bias of the first expert", bias_error(&l, l.x, bias, ids, -1), BOUND_EXACT);
        }
        free(bias), free(ids);
        launch_free(&l);
    }
}

typedef enum sum_mutant { SUM_RIGHT, NO_SHARES, LAST_LEFT_OUT, SHARES_REVERSED } sum_mutant;

static double sum_error(const launch *l, const float *shares, sum_mutant mu)
{
    const lt_view *v = l->c.args.src, *y = &l->c.args.dst;
    const int64_t each = v[0].dim[1];
    double worst = 0, want[2880];
    for (int64_t t = 0; t < y->dim[0]; t++) {
        const float *s = floats_of(&v[1], shares, t, 0);
        for (int64_t i = 0; i < y->dim[1]; i++) {
            want[i] = 0;
            for (int64_t k = 0; k < each - (mu == LAST_LEFT_OUT); k++)
                want[i] += (mu == NO_SHARES ? 1 : (double)s[mu == SHARES_REVERSED ? each - 1 - k : k]) * floats_of(&v[0], l->x, t, k)[i];
        }
        worst = fmax(worst, nmse(want, floats_of(y, l->y, t, 0), (size_t)y->dim[1]));
    }
    return worst;
}

static void expert_sum(void **state)
{
    (void)state;
    for (int n = 0; n < N_WIDTHS * DATA_KINDS * 2; n++) {
        const data_kind kind = (data_kind)(n / N_WIDTHS % DATA_KINDS);
        const int64_t cols = widths[n % N_WIDTHS], k = 1 + (n + n / N_WIDTHS) % 8, tokens = n % 17 == 0 ? 201 : 1 + n * 5 % 23;
        lt_view x = spread(view(LT_DTYPE_F32, 3, tokens, k, cols), n % 3 * 4), s = spread(view(LT_DTYPE_F32, 2, tokens, k, 0), n % 4 * 4),
                y = spread(view(LT_DTYPE_F32, 2, tokens, cols, 0), n % 5 * 4);
        launch l;
        launch_init(&l, LT_OP_EXPERT_SUM, &x, &y, kind, false);
        float *shares = rnd_floats(view_bytes(&s) / 4, kind == DATA_WILD && n % 2 ? DATA_WILD : DATA_NORMAL);
        launch_source(&l, &s, shares);
        rig_check(&l.c, "EXPERT_SUM", l.y);
        if (kind <= DATA_HEAVY && cols >= 64) /* of a few columns all may be sums that cancel */
            assert_within("EXPERT_SUM", sum_error(&l, shares, SUM_RIGHT), BOUND_EXACT);
        if (kind == DATA_NORMAL && k > 1 && cols == 576) {
            assert_caught("sum without the shares", sum_error(&l, shares, NO_SHARES), BOUND_EXACT);
            assert_caught("sum without its last expert", sum_error(&l, shares, LAST_LEFT_OUT), BOUND_EXACT);
            assert_caught("shares in the other order", sum_error(&l, shares, SHARES_REVERSED), BOUND_EXACT);
        }
        free(shares);
        launch_free(&l);
    }
}

typedef enum clamp_mutant { CLAMP_RIGHT, NO_LIMIT, GATE_FROM_BELOW, UP_NOT_FROM_BELOW, NO_ALPHA, UP_WITHOUT_ONE, GATE_AND_UP } clamp_mutant;

static double clamp64(double g, double u, double alpha, double limit, clamp_mutant mu)
{
    if (mu == GATE_AND_UP) {
        const double other = g;
        g = u, u = other;
    }
    if (mu != NO_LIMIT) {
        g = fmin(g, limit);
        u = fmin(u, limit);
        g = mu == GATE_FROM_BELOW ? fmax(g, -limit) : g;
        u = mu == UP_NOT_FROM_BELOW ? u : fmax(u, -limit);
    }
    return g / (1 + exp(-(mu == NO_ALPHA ? 1 : alpha) * g)) * (mu == UP_WITHOUT_ONE ? u : u + 1);
}

static double clamp_error(const launch *l, const float *up, clamp_mutant mu)
{
    const lt_view *v = l->c.args.src, *y = &l->c.args.dst;
    const lt_clamp_params *p = &l->c.args.params.CLAMP_MUL;
    double worst = 0, want[2880];
    for (int64_t t = 0; t < y->dim[0]; t++) {
        for (int64_t i = 0; i < y->dim[1]; i++)
            want[i] = clamp64(floats_of(&v[0], l->x, t, 0)[i], floats_of(&v[1], up, t, 0)[i], (double)p->alpha, (double)p->limit, mu);
        worst = fmax(worst, nmse(want, floats_of(y, l->y, t, 0), (size_t)y->dim[1]));
    }
    return worst;
}

static void clamp_mul(void **state)
{
    (void)state;
    static const char *const bugs[] = {"", "no limits", "the gate from below too", "up not from below", "sigmoid without alpha",
                                       "up without one more", "gate and up swapped"};
    for (int n = 0; n < N_WIDTHS * DATA_KINDS * 2; n++) {
        const data_kind kind = (data_kind)(n / N_WIDTHS % DATA_KINDS);
        const int64_t cols = widths[n % N_WIDTHS], tokens = n % 17 == 0 ? 201 : 1 + n * 5 % 23;
        const bool in_place = n % 2;
        lt_view x = spread(view(LT_DTYPE_F32, 2, tokens, cols, 0), n % 3 * 4), u = spread(view(LT_DTYPE_F32, 2, tokens, cols, 0), n % 4 * 4),
                y = spread(view(LT_DTYPE_F32, 2, tokens, cols, 0), n % 5 * 4);
        launch l;
        launch_init(&l, LT_OP_CLAMP_MUL, &x, in_place ? &x : &y, kind, in_place);
        float *up = rnd_floats(view_bytes(&u) / 4, kind);
        for (size_t i = 0; kind == DATA_NORMAL && i < l.c.src_bytes[0] / 4; i++)
            l.x[i] *= 4; /* beyond the limit, both ways */
        for (size_t i = 0; kind == DATA_NORMAL && i < view_bytes(&u) / 4; i++)
            up[i] *= 4;
        launch_source(&l, &u, up);
        l.c.args.params.CLAMP_MUL = n % 4 >= 2 ? (lt_clamp_params){0.5f, 1.5f} : (lt_clamp_params){1.702f, 7};
        rig_check(&l.c, "CLAMP_MUL", l.y);
        if (kind <= DATA_HEAVY && cols >= 64) /* a row of a few can be all tail, where gates keep fewer digits */
            assert_within("CLAMP_MUL", clamp_error(&l, up, CLAMP_RIGHT), BOUND_EXACT);
        for (int mu = 1; kind == DATA_NORMAL && cols == 2880 && mu <= GATE_AND_UP; mu++)
            if (mu != GATE_FROM_BELOW || n % 4 >= 2) /* below -7 the sigmoid is as good as nothing */
                assert_caught(bugs[mu], clamp_error(&l, up, (clamp_mutant)mu), BOUND_EXACT);
        free(up);
        launch_free(&l);
    }
}

/* Every float of a coarse grid as the gate, and as up. */
static void clamp_mul_over_the_whole_range(void **state)
{
    (void)state;
    const int64_t n = 1 << 16;
    lt_view v = view(LT_DTYPE_F32, 2, 1, n, 0);
    for (int as_up = 0; as_up < 2; as_up++) {
        launch l;
        launch_init(&l, LT_OP_CLAMP_MUL, &v, &v, DATA_NORMAL, false);
        float *up = malloc((size_t)n * 4);
        l.c.args.params.CLAMP_MUL = (lt_clamp_params){1.702f, 7};
        for (int64_t i = 0; i < n; i++) {
            const float x = lt__bits_f32((uint32_t)i << 16 | (uint32_t)(i & 0xffff));
            l.x[i] = as_up ? 1 : x, up[i] = as_up ? x : 0.5f;
        }
        launch_source(&l, &v, up);
        rig_check(&l.c, "CLAMP_MUL", l.y);
        for (int64_t i = 0; i < n; i++) {
            const double g = l.x[i], u = up[i], want = clamp64(g, u, (double)1.702f, 7, CLAMP_RIGHT), got = ((float *)l.y)[i];
            if (isnan(g) || isnan(u)) {
                assert_true(isnan(got));
                continue;
            }
            if (isinf(g) && g < 0) /* minus infinity over infinity */
                continue;
            /* exp turns the absolute error of its argument into a relative one; up near -1 cancels */
            const double argument = fmin(100, fabs(1.702 * fmin(g, 7))), size = fabs(fmax(-7, fmin(7, u))) + 1;
            if (!(fabs(got - want) <= 0x1p-23 * ((4 + 2 * argument) * fabs(want) + size * fabs(fmin(g, 7))) + 1e-35))
                fail_msg("CLAMP_MUL of %.9g and %.9g is %.9g, expected %.9g", g, u, got, want);
        }
        free(up);
        launch_free(&l);
    }
}

/* An id is data: a wrong one is an error of the queue that names the op, the token and the number. */
static void an_expert_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, 6, INT32_MAX, INT32_MIN};
    int ran = 0;
    for (int n = 0; n < 2 * 4 * g_rig.n; n++) {
        rig_device *dev = &g_rig.device[n / 8];
        const bool share = n % 2;
        int32_t ids[5 * 2] = {0, 5, 1, 4, 2, 3, 3, bad[n / 2 % 4], 0, 1};
        char number[64];
        lt_queue *q;
        lt_err err = {0};
        lt_op_args a = {.op = share ? LT_OP_TOP_SHARE : LT_OP_EXPERT_BIAS, .n_src = share ? 2 : 3, .name = "blk.7.experts"};
        if (strncmp(dev->spec, "cuda", 4) == 0) /* a card is told by TOP_K alone, and does not look */
            continue;
        ran++;
        dev->used = 0;
        const lt_view iv = view(LT_DTYPE_I32, 2, 5, 2, 0);
        a.src[0] = share ? view(LT_DTYPE_F32, 2, 5, 6, 0) : view(LT_DTYPE_F32, 3, 5, 2, 8);
        a.src[1] = share ? iv : view(LT_DTYPE_F32, 2, 6, 8, 0), a.src[2] = iv;
        a.dst = share ? view(LT_DTYPE_F32, 2, 5, 2, 0) : view(LT_DTYPE_F32, 3, 5, 2, 8);
        for (uint32_t i = 0; i < a.n_src; i++)
            a.src[i].addr = rig_place(dev, view_bytes(&a.src[i]));
        a.dst.addr = rig_place(dev, view_bytes(&a.dst));
        RIG_OK(lt_queue_create(dev->dev, LT_QUEUE_COMPUTE, &q, &e_));
        RIG_OK(lt_queue_copy_in(q, a.src[a.n_src - 1].addr, ids, sizeof ids, &e_));
        RIG_OK(lt__queue_launch(q, &a, &e_));
        assert_int_equal(lt_queue_sync(q, &err), LT_E_INVALID);
        snprintf(number, sizeof number, "expert %d of token 3, expected 0 to 5", bad[n / 2 % 4]);
        if (!strstr(err.text, number) || !strstr(err.text, "blk.7.experts") || !strstr(err.text, lt_op_get(a.op)->name))
            fail_msg("%s: \"%s\" names not all of \"%s\" and the op", dev->spec, err.text, number);
        lt_queue_destroy(q);
    }
    assert_true(ran > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_hold_their_bounds),
        cmocka_unit_test(planted_bugs_are_caught),
        cmocka_unit_test(every_dtype_and_shape_is_bit_equal),
        cmocka_unit_test(few_and_many_tokens_are_bit_equal),
        cmocka_unit_test(rows_of_a_real_model_are_bit_equal),
        cmocka_unit_test(weights_read_in_place_and_at_odd_addresses_are_bit_equal),
        cmocka_unit_test(every_pair_has_the_bits_of_linear),
        cmocka_unit_test(slices_equal_the_whole),
        cmocka_unit_test(ids_of_no_expert_are_passed_over),
        cmocka_unit_test(prompts_hold_their_bounds),
        cmocka_unit_test(prompts_carry_what_is_not_finite),
        cmocka_unit_test(quantize_of_three_dimensions),
        cmocka_unit_test(top_k),
        cmocka_unit_test(top_share),
        cmocka_unit_test(expert_bias),
        cmocka_unit_test(expert_sum),
        cmocka_unit_test(clamp_mul),
        cmocka_unit_test(clamp_mul_over_the_whole_range),
        cmocka_unit_test(an_expert_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
