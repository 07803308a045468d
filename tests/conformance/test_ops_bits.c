/* The definition does not drift: the bits of every op on fixed inputs, as FNV-1a sums.
 *
 * Two implementations that change together would still agree with each other; here a changed
 * order of a sum or a moved fma shows. The inputs are made of integers alone, so that no libm
 * has a say. LT_PRINT_BITS=1 prints the table, for when docs/arithmetic.md itself changes. */
#include "rig.h"

static uint64_t fnv(const void *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h;
}

/* In (-8, 8), of many magnitudes: a random integer over a random power of two, both exact. */
static float exact_float(void)
{
    int32_t mantissa = (int32_t)(rnd() & 0xffffff) - 0x800000;
    return (float)mantissa * lt__bits_f32((127 - 20 - rnd_below(6)) << 23);
}

static float *exact_floats(size_t n)
{
    float *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++)
        x[i] = exact_float();
    return x;
}

typedef struct expected { const char *name; uint64_t sum; } expected;

static const expected table[] = {
#include "ops_bits.inc"
};

static int g_seen;

static void expect_bits(const char *name, const void *data, size_t bytes)
{
    uint64_t sum = fnv(data, bytes);
    if (getenv("LT_PRINT_BITS")) {
        print_message("{\"%s\", 0x%016llxu},\n", name, (unsigned long long)sum);
        return;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name) == 0) {
            g_seen++;
            if (table[i].sum != sum)
                fail_msg("%s: the bits changed (sum %016llx, expected %016llx)", name, (unsigned long long)sum,
                         (unsigned long long)table[i].sum);
            return;
        }
    }
    fail_msg("%s: no sum in ops_bits.inc", name);
}

/* Runs on every device, then holds the bits to the table. */
static void run_case(rig_case *c, const char *name)
{
    void *blank = calloc(1, c->dst_bytes), *out = malloc(c->dst_bytes);
    for (uint32_t i = 0; i < c->args.n_src; i++)
        c->src_bytes[i] = view_bytes(&c->args.src[i]);
    c->dst = blank;
    rig_check(c, name, out);
    expect_bits(name, out, c->dst_bytes);
    free(blank), free(out);
}

/* Random bits; f16 fields and exponents of sane size. */
static uint8_t *exact_weight(lt_dtype t, int64_t rows, int64_t cols)
{
    static const struct { lt_dtype t; int at[2]; } f16[] = {
        {LT_DTYPE_Q4_0, {0, 0}}, {LT_DTYPE_Q4_1, {0, 2}}, {LT_DTYPE_Q5_0, {0, 0}}, {LT_DTYPE_Q5_1, {0, 2}},
        {LT_DTYPE_Q8_0, {0, 0}}, {LT_DTYPE_Q2_K, {80, 82}}, {LT_DTYPE_Q3_K, {108, 108}}, {LT_DTYPE_Q4_K, {0, 2}},
        {LT_DTYPE_Q5_K, {0, 2}}, {LT_DTYPE_Q6_K, {208, 208}}, {LT_DTYPE_IQ4_NL, {0, 0}}, {LT_DTYPE_IQ4_XS, {0, 0}},
    };
    const lt_dtype_traits *d = lt_dtype_get(t);
    size_t blocks = (size_t)(rows * cols) / d->block_elems;
    uint8_t *w = malloc(blocks * d->block_bytes);
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *at = w + b * d->block_bytes;
        for (uint32_t i = 0; i < d->block_bytes; i++)
            at[i] = (uint8_t)rnd();
        float x = exact_float();
        uint16_t h = t == LT_DTYPE_F16 ? lt__f32_to_f16(x) : lt__f32_to_bf16(x);
        if (d->kind == LT_DTYPE_KIND_FLOAT)
            memcpy(at, t == LT_DTYPE_F32 ? (void *)&x : (void *)&h, d->block_bytes);
        if (t == LT_DTYPE_MXFP4)
            at[0] = (uint8_t)(118 + rnd_below(6));
        for (size_t k = 0; k < sizeof f16 / sizeof *f16; k++) {
            for (int f = 0; f < 2 && f16[k].t == t; f++) {
                uint32_t bits = rnd(); /* one call: the order of two in an expression is free */
                h = (uint16_t)((bits & 0x8000) | (0x1c00 + (bits >> 16) % 0x800));
                memcpy(at + f16[k].at[f], &h, 2);
            }
        }
    }
    return w;
}

static void linear(void **state)
{
    (void)state;
    const int64_t tokens = 3, rows = 17, cols = 768;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        lt_dtype_kind kind = lt_dtype_get((lt_dtype)t)->kind;
        if (kind != LT_DTYPE_KIND_FLOAT && kind != LT_DTYPE_KIND_QUANT)
            continue;
        char name[64];
        g_seed = 1000 + (uint64_t)t;
        float *x = exact_floats((size_t)(tokens * cols));
        uint8_t *w = exact_weight((lt_dtype)t, rows, cols);
        lt_view v = view(LT_DTYPE_F32, 2, tokens, cols, 0), q = view(LT_DTYPE_Q8A, 2, tokens, cols, 0);
        rig_case quantize = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize", .src = {v}, .dst = q},
                             .src = {x}, .src_bytes = {view_bytes(&v)}, .dst_bytes = view_bytes(&q)};
        quantize.dst = calloc(1, quantize.dst_bytes);
        void *act = malloc(quantize.dst_bytes);
        rig_check(&quantize, "QUANTIZE", act);
        rig_case c = {.args = {.op = LT_OP_LINEAR, .n_src = 2, .name = "linear"}};
        c.args.src[0] = kind == LT_DTYPE_KIND_QUANT ? q : v, c.args.src[1] = view((lt_dtype)t, 2, rows, cols, 0);
        c.args.dst = view(LT_DTYPE_F32, 2, tokens, rows, 0), c.dst_bytes = view_bytes(&c.args.dst);
        c.src[0] = kind == LT_DTYPE_KIND_QUANT ? act : (void *)x, c.src[1] = w;
        snprintf(name, sizeof name, "LINEAR %s", lt_dtype_get((lt_dtype)t)->name);
        run_case(&c, name);
        if (t == LT_DTYPE_Q4_0)
            expect_bits("QUANTIZE", act, quantize.dst_bytes);
        free((void *)quantize.dst), free(act), free(x), free(w);
    }
}

static void simple(void **state)
{
    (void)state;
    static const lt_op ops[] = {LT_OP_RMS_NORM, LT_OP_ROPE, LT_OP_ADD, LT_OP_ADD_ROW, LT_OP_SILU_MUL, LT_OP_GELU_MUL, LT_OP_SCALE,
                                LT_OP_SOFTCAP};
    for (int i = 0; i < 8; i++) {
        lt_op op = ops[i];
        g_seed = 77 + (uint64_t)i;
        float *x = exact_floats(4096), *z = exact_floats(4096);
        lt_view m = view(LT_DTYPE_F32, 2, 3, 1000, 0), v = view(LT_DTYPE_F32, 1, 1000, 0, 0);
        rig_case c = {.args = {.op = op, .n_src = lt_op_get(op)->n_src, .name = lt_op_get(op)->name, .src = {m, m}, .dst = m},
                      .src = {x, z}};
        if (op == LT_OP_RMS_NORM || op == LT_OP_ADD_ROW)
            c.args.src[1] = v;
        if (op == LT_OP_RMS_NORM)
            c.args.params.RMS_NORM.eps = 1e-5f;
        if (op == LT_OP_SCALE)
            c.args.params.SCALE.factor = 0.1f;
        if (op == LT_OP_SOFTCAP)
            c.args.params.SOFTCAP.cap = 3;
        if (op == LT_OP_ROPE) {
            c.args.src[0] = c.args.dst = view(LT_DTYPE_F32, 3, 5, 3, 80), c.args.src[1] = view(LT_DTYPE_F32, 3, 5, 32, 2);
            c.args.params.ROPE = (lt_rope_params){LT_ROPE_HALVES, 64};
        }
        c.dst_bytes = view_bytes(&c.args.dst);
        run_case(&c, lt_op_get(op)->name);
        free(x), free(z);
    }
}

static void weighted_experts(void **state)
{
    (void)state;
    static const lt_dtype types[] = {LT_DTYPE_F32, LT_DTYPE_F16, LT_DTYPE_BF16, LT_DTYPE_Q8_0, LT_DTYPE_Q4_K, LT_DTYPE_MXFP4};
    const int64_t tokens = 5, each = 3, experts = 4, rows = 11, cols = 512;
    for (int i = 0; i < 6; i++) {
        char name[64];
        const bool quant = lt_dtype_get(types[i])->kind == LT_DTYPE_KIND_QUANT;
        g_seed = 9000 + (uint64_t)i;
        int32_t ids[5 * 3];
        for (int k = 0; k < 15; k++)
            ids[k] = (int32_t)((k / 3 + k % 3 * 3) % 5); /* 4 is of another slice */
        float *x = exact_floats((size_t)(tokens * each * cols));
        uint8_t *w = exact_weight(types[i], experts * rows, cols);
        lt_view v = view(LT_DTYPE_F32, 3, tokens, each, cols), q = view(LT_DTYPE_Q8A, 3, tokens, each, cols);
        rig_case quantize = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize", .src = {v}, .dst = q},
                             .src = {x}, .src_bytes = {view_bytes(&v)}, .dst_bytes = view_bytes(&q)};
        quantize.dst = calloc(1, quantize.dst_bytes);
        void *act = malloc(quantize.dst_bytes);
        rig_check(&quantize, "QUANTIZE", act);
        rig_case c = {.args = {.op = LT_OP_EXPERT_LINEAR, .n_src = 3, .name = "experts"}};
        c.args.src[0] = quant ? q : v, c.args.src[1] = view(types[i], 3, experts, rows, cols);
        c.args.src[2] = view(LT_DTYPE_I32, 2, tokens, each, 0), c.args.dst = view(LT_DTYPE_F32, 3, tokens, each, rows);
        c.src[0] = quant ? act : (void *)x, c.src[1] = w, c.src[2] = ids, c.dst_bytes = view_bytes(&c.args.dst);
        snprintf(name, sizeof name, "EXPERT_LINEAR %s", lt_dtype_get(types[i])->name);
        run_case(&c, name);
        free((void *)quantize.dst), free(act), free(x), free(w);
    }
}

static void about_experts(void **state)
{
    (void)state;
    static const lt_op ops[] = {LT_OP_TOP_K, LT_OP_TOP_SHARE, LT_OP_TOP_SHARE, LT_OP_EXPERT_BIAS, LT_OP_EXPERT_SUM, LT_OP_CLAMP_MUL};
    for (int i = 0; i < 6; i++) {
        const lt_op op = ops[i];
        g_seed = 555 + (uint64_t)i;
        char name[64];
        int32_t ids[7 * 4];
        for (int k = 0; k < 28; k++)
            ids[k] = (int32_t)((k * 5 + k / 4) % 37);
        float *x = exact_floats(7 * 4 * 301), *z = exact_floats(37 * 301);
        lt_view scores = view(LT_DTYPE_F32, 2, 7, 37, 0), picked = view(LT_DTYPE_I32, 2, 7, 4, 0), rows = view(LT_DTYPE_F32, 3, 7, 4, 301),
                flat = view(LT_DTYPE_F32, 2, 7, 301, 0);
        rig_case c = {.args = {.op = op, .n_src = lt_op_get(op)->n_src, .name = lt_op_get(op)->name, .src = {rows}, .dst = flat}, .src = {x, z, ids}};
        snprintf(name, sizeof name, "%s%s", lt_op_get(op)->name, i == 2 ? " all" : "");
        if (op == LT_OP_TOP_K || op == LT_OP_TOP_SHARE)
            c.args.src[0] = scores, c.args.dst = picked;
        if (op == LT_OP_TOP_K)
            c.args.params.TOP_K.k = 4;
        if (op == LT_OP_TOP_SHARE)
            c.args.src[1] = picked, c.src[1] = ids, c.args.dst.dtype = LT_DTYPE_F32, c.args.params.TOP_SHARE.all = i == 2;
        if (op == LT_OP_EXPERT_BIAS)
            c.args.src[1] = view(LT_DTYPE_F32, 2, 37, 301, 0), c.args.src[2] = picked, c.args.dst = rows;
        if (op == LT_OP_EXPERT_SUM)
            c.args.src[1] = view(LT_DTYPE_F32, 2, 7, 4, 0);
        if (op == LT_OP_CLAMP_MUL)
            c.args.src[0] = c.args.src[1] = flat, c.args.params.CLAMP_MUL = (lt_clamp_params){1.702f, 7};
        c.dst_bytes = view_bytes(&c.args.dst);
        run_case(&c, name);
        free(x), free(z);
    }
}

static void attention(void **state)
{
    (void)state;
    static const struct { lt_dtype t; uint32_t window; float cap; bool sinks; const char *also; } kinds[] = {
        {LT_DTYPE_F32, 0, 0, false, ""},      {LT_DTYPE_F16, 0, 0, false, ""},     {LT_DTYPE_Q8_0, 0, 0, false, ""},
        {LT_DTYPE_F16, 300, 0, false, ""},    {LT_DTYPE_F32, 0, 5, false, " cap"}, {LT_DTYPE_F16, 0, 0, true, " sinks"},
        {LT_DTYPE_Q8_0, 0, 5, true, " both"}, {LT_DTYPE_F16, 300, 0.5f, true, " both"}};
    const int32_t length = 600, tokens = 5, dim = 64, kv_heads = 2, heads = 6;
    for (int k = 0; k < 8; k++) {
        uint64_t row;
        char name[64];
        int32_t pos[600], pages[3] = {2, 0, 1};
        g_seed = 4242 + (uint64_t)k;
        float *kv[2], *q = exact_floats(5 * 6 * 64);
        kv[0] = exact_floats(600 * 2 * 64);
        kv[1] = exact_floats(600 * 2 * 64);
        for (int32_t i = 0; i < 5 * 6 * 64; i++)
            q[i] *= 0.125f;
        for (int32_t i = 0; i < length; i++)
            pos[i] = i;
        assert_true(lt_dtype_row_bytes(kinds[k].t, (uint64_t)dim, &row));
        lt_kv_layout layout = {.page_bytes = row * 256 * kv_heads * 2, .v_offset = row * 256 * kv_heads,
                               .kv_heads = (uint32_t)kv_heads, .head_dim = (uint32_t)dim, .dtype = kinds[k].t};
        lt_view cache = view(LT_DTYPE_I8, 1, (int64_t)layout.page_bytes * 3, 0, 0), table_view = view(LT_DTYPE_I32, 1, 3, 0, 0);
        rig_case s = {.args = {.op = LT_OP_KV_STORE, .n_src = 4, .name = "store", .params.KV_STORE = {layout}, .dst = cache}};
        s.args.src[0] = s.args.src[1] = view(LT_DTYPE_F32, 3, length, kv_heads, dim);
        s.args.src[2] = view(LT_DTYPE_I32, 1, length, 0, 0), s.args.src[3] = table_view;
        s.src[0] = kv[0], s.src[1] = kv[1], s.src[2] = pos, s.src[3] = pages;
        s.dst_bytes = view_bytes(&cache), s.dst = calloc(1, s.dst_bytes);
        for (int i = 0; i < 4; i++)
            s.src_bytes[i] = view_bytes(&s.args.src[i]);
        uint8_t *bytes = malloc(s.dst_bytes);
        rig_run(&g_rig.device[0], &s, bytes);
        snprintf(name, sizeof name, "KV_STORE %s %u%s", lt_dtype_get(kinds[k].t)->name, kinds[k].window, kinds[k].also);
        expect_bits(name, bytes, s.dst_bytes);
        rig_case c = {.args = {.op = LT_OP_ATTENTION, .n_src = 4, .name = "attention"}};
        c.args.params.ATTENTION = (lt_attention_params){.kv = layout, .heads = (uint32_t)heads, .window = kinds[k].window, .scale = 0.125f, .cap = kinds[k].cap};
        c.args.src[0] = c.args.dst = view(LT_DTYPE_F32, 3, tokens, heads, dim);
        c.args.src[1] = cache, c.args.src[2] = view(LT_DTYPE_I32, 1, tokens, 0, 0), c.args.src[3] = table_view;
        c.src[0] = q, c.src[1] = bytes, c.src[2] = pos + length - tokens, c.src[3] = pages;
        c.dst_bytes = view_bytes(&c.args.dst);
        float *sinks = exact_floats((size_t)heads);
        if (kinds[k].sinks)
            c.args.n_src = 5, c.args.src[4] = view(LT_DTYPE_F32, 1, heads, 0, 0), c.src[4] = sinks;
        snprintf(name, sizeof name, "ATTENTION %s %u%s", lt_dtype_get(kinds[k].t)->name, kinds[k].window, kinds[k].also);
        run_case(&c, name);
        free((void *)s.dst), free(bytes), free(kv[0]), free(kv[1]), free(q), free(sinks);
    }
}

static void every_sum_of_the_table_was_compared(void **state)
{
    (void)state;
    if (!getenv("LT_PRINT_BITS"))
        assert_int_equal(g_seen, sizeof table / sizeof *table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear), cmocka_unit_test(simple), cmocka_unit_test(attention),
        cmocka_unit_test(weighted_experts), cmocka_unit_test(about_experts),
        cmocka_unit_test(every_sum_of_the_table_was_compared),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
