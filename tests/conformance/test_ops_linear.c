/* QUANTIZE and LINEAR on every device: dtype by dtype, shape by shape. */
#include "weights_rig.h"

#define BOUND_EXACT 1e-12   /* of f32 sums: relative error 1e-6 */
#define BOUND_PROMPT_F16 1e-6  /* activations of a prompt as f16 of their row's scale: 2^-11 each at worst */
#define BOUND_PROMPT_BF16 1e-7 /* as two bf16; seen 1e-8 where one sum of eight cancels */
#define BOUND_PRODUCT 5e-4  /* of a quantised weight times f32 activations, quantisation included */

typedef struct product {
    lt_dtype t;
    int64_t  rows, cols, tokens;
    float   *x;       /* [tokens, cols] */
    uint8_t *w;
    void    *act;     /* what LINEAR reads */
    float   *y, *blank;
    rig_case c;
} product;

static void product_init(product *p, lt_dtype t, int64_t rows, int64_t cols, int64_t tokens, data_kind kind)
{
    bool wild = kind == DATA_WILD;
    *p = (product){.t = t, .rows = rows, .cols = cols, .tokens = tokens};
    p->x = rnd_floats((size_t)(tokens * cols), kind);
    p->w = rnd_weight(t, rows, cols, wild, &p->c.src_bytes[1]);
    p->act = activations(t, p->x, tokens, cols, &p->c.src_bytes[0]);
    p->c.args = (lt_op_args){.op = LT_OP_LINEAR, .n_src = 2, .name = "linear"};
    p->c.args.src[0] = view(is_quant(t) ? LT_DTYPE_Q8A : LT_DTYPE_F32, 2, tokens, cols, 0);
    p->c.args.src[1] = view(t, 2, rows, cols, 0);
    p->c.args.dst = view(LT_DTYPE_F32, 2, tokens, rows, 0);
    p->c.src[0] = p->act, p->c.src[1] = p->w;
    p->c.dst_bytes = (size_t)(tokens * rows) * 4;
    p->c.dst = p->blank = calloc(1, p->c.dst_bytes);
    p->y = malloc(p->c.dst_bytes);
}

static void product_free(product *p)
{
    free(p->x), free(p->w), free(p->act), free(p->y), free(p->blank);
}

static const char *product_name(const product *p, data_kind kind)
{
    static char name[128];
    snprintf(name, sizeof name, "LINEAR %s, %lld rows, %lld columns, %lld tokens, %s data",
             lt_dtype_get(p->t)->name, (long long)p->rows, (long long)p->cols, (long long)p->tokens,
             data_names[kind]);
    return name;
}

static void check_product(lt_dtype t, int64_t rows, int64_t cols, int64_t tokens, data_kind kind)
{
    product p;
    product_init(&p, t, rows, cols, tokens, kind);
    rig_check(&p.c, product_name(&p, kind), p.y);
    product_free(&p);
}

static const int64_t columns[] = {32, 64, 96, 256, 576, 640, 768, 1536, 2048, 1, 7, 31, 33, 255, 257, 300, 577, 1000};

static void every_dtype_and_shape_is_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        int n = 0;
        for (size_t k = 0; is_weight((lt_dtype)t) && k < sizeof columns / sizeof *columns; k++) {
            uint64_t bytes;
            if (!lt_dtype_row_bytes((lt_dtype)t, (uint64_t)columns[k], &bytes))
                continue;
            for (int64_t rows = 1; rows <= 17; rows++, n++)
                check_product((lt_dtype)t, rows, columns[k], 1 + (rows * 5 + (int64_t)k) % 9,
                              (data_kind)(n % DATA_KINDS));
        }
    }
}

static void large_shapes_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t))
            continue;
        int64_t wide = lt_dtype_get((lt_dtype)t)->block_elems == 256 ? 1536 : 576;
        check_product((lt_dtype)t, 192, wide, 33, DATA_NORMAL);
        check_product((lt_dtype)t, 576, wide, 1, DATA_HEAVY);
        check_product((lt_dtype)t, 192, 2048, 2, DATA_WILD);
        check_product((lt_dtype)t, 67, 256, 65, DATA_NORMAL);
    }
    check_product(LT_DTYPE_Q4_K, 5001, 4096, 17, DATA_NORMAL); /* more rows than a device takes apart at once */
}

/* Columns of every remainder of 256, tiles of tokens and rows with and without a rest. */
static void many_tokens_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t tokens[] = {15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        int64_t step = is_quant((lt_dtype)t) ? lt_dtype_get((lt_dtype)t)->block_elems : 0;
        for (int64_t k = 0; step && k < 11; k++)
            check_product((lt_dtype)t, 1 + k * 37 % 130, step * (1 + k * 5 % 13), tokens[k], (data_kind)(k % DATA_KINDS));
    }
}

/* Tiles of tokens, of rows and of columns with every rest; tokens that are packed in several turns. */
static void many_tokens_of_floats_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t tokens[] = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 31, 33, 64, 65, 100},
                         rows[] = {1, 2, 3, 4, 5, 7, 16, 31, 33, 67, 130, 257},
                         cols[] = {1, 5, 8, 15, 16, 17, 250, 256, 257, 300, 511, 520, 768, 1000, 1025, 1281, 2047, 2304};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t) || is_quant((lt_dtype)t))
            continue;
        for (int64_t k = 0; k < 2 * 17 * 5; k++) { /* 17 and 12 and 18: every pair of neighbours meets in the end */
            int64_t m = tokens[k % 17], r = rows[(k * 5 + t) % 12], c = cols[(k * 7 + k / 17) % 18];
            if (m * r * c < 3000000)
                check_product((lt_dtype)t, r, c, m, (data_kind)(k % DATA_KINDS));
        }
        check_product((lt_dtype)t, 70, 576, 100, DATA_NORMAL);
        check_product((lt_dtype)t, 33, 4100, 64, DATA_HEAVY);
        check_product((lt_dtype)t, 9, 16390, 131, DATA_NORMAL);
    }
}

/* Products so small that every sum is -0: a lane too many would make +0 of it. */
static void sums_of_minus_zero_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t cols[] = {256, 257, 300, 511, 519, 1001};
    for (int k = 0; k < 6 * 2; k++) {
        product p;
        product_init(&p, k % 2 ? LT_DTYPE_BF16 : LT_DTYPE_F32, 11, cols[k / 2], 13, DATA_NORMAL);
        for (int64_t i = 0; i < p.tokens * p.cols; i++)
            ((float *)p.act)[i] = 1e-30f;
        for (int64_t i = 0; i < p.rows * p.cols; i++) {
            const float w = -1e-30f;
            const uint16_t h = lt__f32_to_bf16(w);
            memcpy(p.w + i * (k % 2 ? 2 : 4), k % 2 ? (const void *)&h : (const void *)&w, k % 2 ? 2 : 4);
        }
        rig_check(&p.c, product_name(&p, DATA_TINY), p.y);
        for (int64_t i = 0; i < p.tokens * p.rows; i++)
            assert_int_equal(lt__f32_bits(p.y[i]), 0x80000000);
        product_free(&p);
    }
}

/* Rows around the sizes that a card gives to a block of threads, tokens around its tiles, columns that end inside a group
 * of 256 or a segment of several, rows that begin at odd addresses. */
static void rows_about_a_block_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t rows[] = {31, 32, 33, 63, 64, 65, 130}, wide[] = {224, 288, 544, 1056, 2016, 2080, 4352, 5152}, many[] = {512, 1280, 2304, 4352};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t))
            continue;
        bool super = lt_dtype_get((lt_dtype)t)->block_elems == 256;
        for (int64_t k = 0; k < 8; k++) {
            int64_t cols = super ? many[k % 4] : wide[k];
            check_product((lt_dtype)t, rows[(k + t) % 7], cols, 1 + k, k % 3 ? DATA_NORMAL : DATA_WILD);
            check_product((lt_dtype)t, rows[(k + t + 3) % 7], cols, 1, DATA_NORMAL);
        }
    }
}

/* The same weight, eight bytes further on than the start of an allocation. */
static void weights_at_odd_addresses_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        for (int64_t tokens = 1; is_weight((lt_dtype)t) && tokens <= 8; tokens += 7) {
            product p;
            product_init(&p, (lt_dtype)t, 37, 1280, tokens, DATA_NORMAL);
            rig_run(&g_rig.device[0], &p.c, p.y);
            uint8_t *moved = calloc(1, p.c.src_bytes[1] + 8);
            memcpy(moved + 8, p.w, p.c.src_bytes[1]);
            p.c.src[1] = moved, p.c.src_bytes[1] += 8, p.c.args.src[1].addr = 8;
            for (int d = 0, end = rig_share(); d < end; d++) {
                float *got = malloc(p.c.dst_bytes);
                rig_run(&g_rig.device[d], &p.c, got);
                rig_same(product_name(&p, DATA_NORMAL), g_rig.device[d].spec, &p.c.args.dst, p.y, got, p.c.dst_bytes);
                free(got);
            }
            free(moved);
            product_free(&p);
        }
    }
}

/* A weight that a card takes apart in two goes, 42 MiB of it. */
static void a_large_weight_of_a_prompt_is_bit_equal(void **state)
{
    (void)state;
    check_product(LT_DTYPE_Q4_K, 8300, 4096, 33, DATA_NORMAL);
}

/* Activations that do not fit the fast memory of a block of threads: fewer tokens at a time, then none. */
static void very_long_rows_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t columns_long[] = {24576, 65536, 262144};
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        for (int k = 0; is_weight((lt_dtype)t) && k < 3; k++)
            check_product((lt_dtype)t, 3, columns_long[k], k == 0 ? 8 : k == 1 ? 4 : 2, DATA_NORMAL);
}

/* Where a file says: a tensor begins at any multiple of 32 bytes, which is no line of a memory. */
static void weights_off_their_lines_are_bit_equal(void **state)
{
    (void)state;
    static const int64_t columns_off[] = {8, 56, 256, 264, 1000, 1024, 4096};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        for (int k = 0; is_weight((lt_dtype)t) && k < 7 * 8; k++) {
            const int64_t cols = columns_off[k % 7];
            const size_t off = 16 * (size_t)(k / 7);
            product p;
            if (cols % lt_dtype_get((lt_dtype)t)->block_elems)
                continue;
            product_init(&p, (lt_dtype)t, 1 + 5 * (k % 9), cols, k % 5 == 4 ? 2 : 1, k % 3 == 2 ? DATA_WILD : DATA_NORMAL);
            uint8_t *moved = malloc(p.c.src_bytes[1] + off);
            memset(moved, 0xff, off); /* NaN before the weight: what is read there must not count */
            memcpy(moved + off, p.w, p.c.src_bytes[1]);
            p.c.src[1] = moved, p.c.src_bytes[1] += off, p.c.args.src[1].addr = off;
            p.c.in_place = k % 2;
            rig_check(&p.c, product_name(&p, DATA_NORMAL), p.y);
            free(moved);
            product_free(&p);
        }
    }
}

/* Page-locked host memory in place of the device's: what a weight is read from changes no bit. */
static void weights_read_in_place_are_bit_equal(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (!is_weight((lt_dtype)t))
            continue;
        for (int64_t tokens = 1; tokens <= 5; tokens += 4) {
            product p;
            product_init(&p, (lt_dtype)t, 101, 1024, tokens, DATA_HEAVY);
            p.c.in_place = true;
            rig_check(&p.c, product_name(&p, DATA_HEAVY), p.y);
            product_free(&p);
        }
    }
}

/* A weight cut into rows, each slice writing its columns of a wider matrix. */
static void slices_equal_the_whole(void **state)
{
    (void)state;
    static const int64_t cuts[] = {0, 16, 17, 33, 48};
    const int64_t rows = 48, cols = 512, wide = 55, first = 3;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        for (int64_t tokens = 1; is_weight((lt_dtype)t) && tokens <= 9; tokens += 4) {
            product p;
            uint64_t row_bytes;
            product_init(&p, (lt_dtype)t, rows, cols, tokens, DATA_NORMAL);
            assert_true(lt_dtype_row_bytes(p.t, (uint64_t)cols, &row_bytes));
            rig_run(&g_rig.device[0], &p.c, p.y);
            size_t bytes = (size_t)(tokens * wide) * 4;
            float *got = malloc(bytes);
            for (int d = 0, end = rig_share(); d < end; d++) {
                memset(got, 0x5a, bytes);
                for (int k = 0; k + 1 < 5; k++) {
                    rig_case c = p.c;
                    c.args.src[1].dim[0] = c.args.dst.dim[1] = cuts[k + 1] - cuts[k];
                    c.args.src[1].addr = (uint64_t)cuts[k] * row_bytes;
                    c.args.dst.addr = (uint64_t)(first + cuts[k]) * 4;
                    c.args.dst.stride[0] = wide * 4;
                    c.dst = got, c.dst_bytes = bytes;
                    float *out = malloc(bytes);
                    rig_run(&g_rig.device[d], &c, out);
                    memcpy(got, out, bytes);
                    free(out);
                }
                for (int64_t at = 0; at < tokens * wide; at++) {
                    int64_t r = at % wide - first;
                    uint32_t want = 0x5a5a5a5a;
                    if (r >= 0 && r < rows)
                        want = lt__f32_bits(p.y[at / wide * rows + r]);
                    if (lt__f32_bits(got[at]) != want)
                        fail_msg("%s: %s in slices: column %lld of token %lld differs from the whole",
                                 g_rig.device[d].spec, lt_dtype_get(p.t)->name, (long long)r,
                                 (long long)(at / wide));
                }
            }
            free(got);
            product_free(&p);
        }
    }
}

static void a_batch_equals_each_token_alone(void **state)
{
    (void)state;
    const int64_t rows = 24, cols = 768;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        for (int k = 0; is_weight((lt_dtype)t) && k < 2; k++) {
            product p;
            int64_t tokens = k ? 33 : 7;
            product_init(&p, (lt_dtype)t, rows, cols, tokens, DATA_NORMAL);
            rig_check(&p.c, product_name(&p, DATA_NORMAL), p.y);
            for (int d = 0, end = rig_share(); d < end; d++) {
                for (int64_t i = 0; i < tokens; i++) {
                    float one[24];
                    rig_case c = p.c;
                    c.args.src[0].addr = (uint64_t)(i * c.args.src[0].stride[0]);
                    c.args.src[0].dim[0] = c.args.dst.dim[0] = 1;
                    c.dst_bytes = sizeof one;
                    rig_run(&g_rig.device[d], &c, one);
                    rig_same("LINEAR, a token alone", g_rig.device[d].spec, &c.args.dst, p.y + i * rows, one,
                             sizeof one);
                }
            }
            product_free(&p);
        }
    }
}

static double *product64(const product *p, const float *w, const float *x)
{
    double *y = calloc((size_t)(p->tokens * p->rows), sizeof *y);
    for (int64_t t = 0; t < p->tokens; t++) {
        for (int64_t r = 0; r < p->rows; r++) {
            double sum = 0;
            for (int64_t i = 0; i < p->cols; i++)
                sum += (double)w[r * p->cols + i] * x[t * p->cols + i];
            y[t * p->rows + r] = sum;
        }
    }
    return y;
}

/* Error against float64 of x as given, and of x as the product reads it. */
static void product_errors(const product *p, const uint8_t *weight, double *whole, double *sum_only)
{
    size_t nw = (size_t)(p->rows * p->cols), nx = (size_t)(p->tokens * p->cols), n = (size_t)(p->tokens * p->rows);
    float *w = malloc(nw * 4), *x = malloc(nx * 4);
    lt_dtype_to_f32(p->t, weight, w, nw);
    for (int64_t t = 0; t < p->tokens; t++)
        lt_dtype_to_f32(p->c.args.src[0].dtype, (const char *)p->act + t * p->c.args.src[0].stride[0],
                        x + t * p->cols, (uint64_t)p->cols);
    double *a = product64(p, w, p->x), *b = product64(p, w, x);
    *whole = nmse(a, p->y, n);
    *sum_only = nmse(b, p->y, n);
    free(w), free(x), free(a), free(b);
}

static void products_hold_their_bounds(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        double worst_whole = 0, worst_sum = 0;
        for (int k = 0; is_weight((lt_dtype)t) && k < 6; k++) {
            product p;
            double whole, sum_only;
            product_init(&p, (lt_dtype)t, 61, 256 << k % 3, 5, k < 3 ? DATA_NORMAL : DATA_HEAVY);
            rig_check(&p.c, product_name(&p, DATA_NORMAL), p.y);
            product_errors(&p, p.w, &whole, &sum_only);
            assert_within(product_name(&p, DATA_NORMAL), sum_only, BOUND_EXACT);
            assert_within(product_name(&p, DATA_NORMAL), whole, is_quant(p.t) ? BOUND_PRODUCT : BOUND_EXACT);
            worst_whole = fmax(worst_whole, whole), worst_sum = fmax(worst_sum, sum_only);
            product_free(&p);
        }
        if (is_weight((lt_dtype)t))
            print_message("LINEAR %-6s NMSE %.2g with quantisation of x, %.2g of the sum alone\n",
                          lt_dtype_get((lt_dtype)t)->name, worst_whole, worst_sum);
    }
}

/* Every token of a prompt alone, on this device: what the batch is must not show. */
static void check_tokens_alone(rig_device *d, const product *p)
{
    float *one = malloc((size_t)p->rows * 4);
    for (int64_t i = 0; i < p->tokens; i++) {
        rig_case c = p->c;
        c.args.src[0].addr = (uint64_t)(i * c.args.src[0].stride[0]);
        c.args.src[0].dim[0] = c.args.dst.dim[0] = 1;
        c.dst_bytes = (size_t)p->rows * 4;
        rig_run(d, &c, one);
        rig_same("LINEAR, a token of a prompt alone", d->spec, &c.args.dst, p->y + i * p->rows, one, c.dst_bytes);
    }
    free(one);
}

/* A prompt's product with half weights may have an order of its own; what is wrong shows against float64. */
static void prompts_hold_their_bounds(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{61, 256, 5}, {128, 512, 64}, {130, 1000, 65}, {70, 72, 130}, {257, 2048, 33}, {1, 8, 1}, {64, 300, 17}};
    for (int k = 0; k < 2; k++) {
        lt_dtype t = k ? LT_DTYPE_BF16 : LT_DTYPE_F16;
        const double bound = k ? BOUND_PROMPT_BF16 : BOUND_PROMPT_F16;
        double worst = 0;
        for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
            const int64_t *s = shapes[i / 2];
            product p;
            double whole, sum_only;
            product_init(&p, t, s[0], s[1], s[2], i % 2 ? DATA_HEAVY : DATA_NORMAL);
            p.c.args.prefill = true;
            for (int64_t j = 0; j < p.tokens; j++) /* rows of very different size: f16 alone would overflow */
                for (int64_t c = 0; c < p.cols; c++)
                    ((float *)p.act)[j * p.cols + c] = p.x[j * p.cols + c] *= j % 3 == 1 ? 1e7f : j % 3 == 2 ? 1e-9f : 1;
            for (int d = 0, end = rig_share(); d < end; d++) {
                rig_run(&g_rig.device[d], &p.c, p.y);
                for (int64_t j = 0; j < p.tokens; j++) { /* each row by itself, the small ones too */
                    product row = p;
                    row.tokens = 1, row.x += j * p.cols, row.act = (float *)p.act + j * p.cols, row.y += j * p.rows;
                    product_errors(&row, p.w, &whole, &sum_only);
                    assert_within(product_name(&p, DATA_NORMAL), sum_only, bound);
                    worst = fmax(worst, sum_only);
                }
                check_tokens_alone(&g_rig.device[d], &p);
                uint16_t kept[8], *piece = (uint16_t *)p.w + p.cols - 8; /* of the first row */
                product first = p;
                first.rows = first.tokens = 1;
                memcpy(kept, piece, sizeof kept);
                memset(piece, 0, sizeof kept);
                product_errors(&first, p.w, &whole, &sum_only);
                if (i % 2 == 0) /* of heavy-tailed data any eight may weigh nothing */
                    assert_caught("the last 16 bytes of a row left out", sum_only, bound);
                memcpy(piece, kept, sizeof kept);
            }
            product_free(&p);
        }
        print_message("LINEAR %-6s of a prompt: NMSE of a row %.2g at worst\n", lt_dtype_get(t)->name, worst);
    }
}

/* What is not finite stays so, wherever it stands in the row. */
static void prompts_carry_what_is_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 6; k++) {
        product p;
        product_init(&p, k % 2 ? LT_DTYPE_BF16 : LT_DTYPE_F16, 33, 520, 3, DATA_NORMAL);
        p.c.args.prefill = true;
        ((float *)p.act)[520 + 519 - k] = bad[k / 2];
        for (int d = 0; d < g_rig.n; d++) {
            rig_run(&g_rig.device[d], &p.c, p.y);
            for (int64_t i = 0; i < 3 * 33; i++)
                if (isfinite(p.y[i]) == (i / 33 == 1))
                    fail_msg("%s: %g in token 1 of 3: output %lld of token %lld is %g", g_rig.device[d].spec, (double)bad[k / 2],
                             (long long)(i % 33), (long long)(i / 33), (double)p.y[i]);
        }
        product_free(&p);
    }
}

/* Mutations of the weight stand for decoders that are wrong in that way. */
static void swap_bytes(uint8_t *a, uint8_t *b) { uint8_t x = *a; *a = *b, *b = x; }

static void planted_bugs_are_caught(void **state)
{
    (void)state;
    static const struct { lt_dtype t; const char *bug; int byte, other, bits; } bugs[] = {
        {LT_DTYPE_Q4_K, "Q4_K: minimum 0 and 1 swapped", 8, 9, 0},
        {LT_DTYPE_Q4_K, "Q4_K: one bit of one minimum", 8, -1, 1},
        {LT_DTYPE_Q4_K, "Q4_K: high bits of scale 4 inverted", 4, -1, 0xc0},
        {LT_DTYPE_Q5_K, "Q5_K: one byte of high bits inverted", 16, -1, 0xff},
        {LT_DTYPE_Q6_K, "Q6_K: scales 0 and 1 swapped", 192, 193, 0},
        {LT_DTYPE_Q3_K, "Q3_K: one byte of the mask inverted", 0, -1, 0xff},
        {LT_DTYPE_Q2_K, "Q2_K: scale and minimum of run 0 off", 0, -1, 0x11},
        {LT_DTYPE_Q4_0, "Q4_0: two weights swapped", 2, 3, 0},
        {LT_DTYPE_Q5_1, "Q5_1: a high bit lost", 4, -1, 1},
        {LT_DTYPE_Q8_0, "Q8_0: a weight off by one", 2, -1, 1},
        {LT_DTYPE_IQ4_XS, "IQ4_XS: high scale bits off", 2, -1, 1},
        {LT_DTYPE_MXFP4, "MXFP4: exponent off by one", 0, -1, 1},
        {LT_DTYPE_F16, "F16: the last bit inverted", 0, -1, 1},
        {LT_DTYPE_BF16, "BF16: the last bit inverted", 0, -1, 1},
        {LT_DTYPE_F32, "F32: bit 8 inverted", 1, -1, 1},
    };
    for (size_t k = 0; k < sizeof bugs / sizeof *bugs; k++) {
        product p;
        double whole, sum_only;
        product_init(&p, bugs[k].t, 61, 256, 5, DATA_NORMAL);
        rig_run(&g_rig.device[0], &p.c, p.y);
        product_errors(&p, p.w, &whole, &sum_only);
        assert_within("before the bug", sum_only, BOUND_EXACT);
        for (size_t at = 0; at < p.c.src_bytes[1]; at += lt_dtype_get(p.t)->block_bytes) {
            p.w[at + bugs[k].byte] ^= (uint8_t)bugs[k].bits;
            if (bugs[k].other >= 0)
                swap_bytes(&p.w[at + bugs[k].byte], &p.w[at + bugs[k].other]);
        }
        product_errors(&p, p.w, &whole, &sum_only);
        assert_caught(bugs[k].bug, sum_only, BOUND_EXACT);
        product_free(&p);
    }
}

static void quantize_is_bit_equal_and_close(void **state)
{
    (void)state;
    for (int kind = 0; kind < DATA_KINDS; kind++) {
        for (int64_t k = 0; k < 24; k++) {
            int64_t tokens = 1 + k % 9 + (k == 23 ? 40 : 0), cols = 32 * (1 + k * k % 67), pad = k % 3 * 32;
            lt_view in = view(LT_DTYPE_F32, 2, tokens, cols, 0), out = view(LT_DTYPE_Q8A, 2, tokens, cols, 0);
            in.stride[0] += pad * 4, out.stride[0] += pad;
            float *x = rnd_floats(view_bytes(&in) / 4, (data_kind)kind);
            rig_case c = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize", .src = {in}, .dst = out},
                          .src = {x}, .src_bytes = {view_bytes(&in)}, .dst_bytes = view_bytes(&out)};
            void *blank = calloc(1, c.dst_bytes), *y = malloc(c.dst_bytes);
            c.dst = blank;
            rig_check(&c, "QUANTIZE", y);
            for (int64_t t = 0; kind <= DATA_HEAVY && t < tokens; t++) {
                float back[67 * 32];
                const int8_t *q = (const int8_t *)y + t * out.stride[0];
                const float *xt = x + t * in.stride[0] / 4;
                lt_dtype_to_f32(LT_DTYPE_Q8A, q, back, (uint64_t)cols);
                for (int64_t i = 0; i < cols; i++) {
                    float d = lt__bits_f32(lt__load_u32(q + cols + i / 32 * 4));
                    assert_true(fabs((double)back[i] - xt[i]) <= d * 0.50001);
                }
                for (int64_t h = 0; h < cols / 16; h++) {
                    int sum = 0;
                    for (int64_t i = 0; i < 16; i++)
                        sum += q[h * 16 + i];
                    assert_int_equal((int16_t)lt__load_u16(q + cols + cols / 32 * 4 + 2 * h), sum);
                }
            }
            free(x), free(blank), free(y);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize_is_bit_equal_and_close), cmocka_unit_test(products_hold_their_bounds),
        cmocka_unit_test(planted_bugs_are_caught),         cmocka_unit_test(every_dtype_and_shape_is_bit_equal),
        cmocka_unit_test(large_shapes_are_bit_equal),      cmocka_unit_test(slices_equal_the_whole),
        cmocka_unit_test(a_batch_equals_each_token_alone), cmocka_unit_test(many_tokens_are_bit_equal),
        cmocka_unit_test(prompts_hold_their_bounds),       cmocka_unit_test(prompts_carry_what_is_not_finite),
        cmocka_unit_test(rows_about_a_block_are_bit_equal), cmocka_unit_test(weights_at_odd_addresses_are_bit_equal),
        cmocka_unit_test(a_large_weight_of_a_prompt_is_bit_equal),
        cmocka_unit_test(very_long_rows_are_bit_equal),    cmocka_unit_test(many_tokens_of_floats_are_bit_equal),
        cmocka_unit_test(sums_of_minus_zero_are_bit_equal), cmocka_unit_test(weights_read_in_place_are_bit_equal),
        cmocka_unit_test(weights_off_their_lines_are_bit_equal),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
