/* EXPERT_LINEAR on every device: dtype by dtype, shape by shape, slice by slice. */
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
        *whole = fmax(*whole, pair_error(m, w, m->x, p / s->k, p % s->k, mu));
        *sum_only = fmax(*sum_only, pair_error(m, w, x, p / s->k, p % s->k, mu));
    }
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
            mix_errors(&m, RIGHT, &whole, &sum_only);
            assert_within(mix_name(&s), sum_only, bound);
            worst = fmax(worst, sum_only);
            mix_errors(&m, NEXT_EXPERT, &whole, &sum_only);
            assert_caught("experts of a prompt one further on", sum_only, bound);
        }
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
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
