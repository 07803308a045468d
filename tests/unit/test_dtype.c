/* Traits, names, sizes, and each dequantiser against values made by another program
 * (tests/golden/make_dtype_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/math.h"
#include "lowtide/dtype.h"

/* Block sizes derived once more, from the fields. */
static void sizes_follow_from_the_fields(void **state)
{
    (void)state;
    static const struct { lt_dtype t; uint32_t elems, bytes; } want[] = {
        {LT_DTYPE_F32, 1, 4}, {LT_DTYPE_F16, 1, 2}, {LT_DTYPE_BF16, 1, 2},
        {LT_DTYPE_Q4_0, 32, 2 + 16}, {LT_DTYPE_Q4_1, 32, 2 + 2 + 16},
        {LT_DTYPE_Q5_0, 32, 2 + 4 + 16}, {LT_DTYPE_Q5_1, 32, 2 + 2 + 4 + 16},
        {LT_DTYPE_Q8_0, 32, 2 + 32}, {LT_DTYPE_Q2_K, 256, 16 + 64 + 2 + 2},
        {LT_DTYPE_Q3_K, 256, 32 + 64 + 12 + 2}, {LT_DTYPE_Q4_K, 256, 2 + 2 + 12 + 128},
        {LT_DTYPE_Q5_K, 256, 2 + 2 + 12 + 32 + 128}, {LT_DTYPE_Q6_K, 256, 128 + 64 + 16 + 2},
        {LT_DTYPE_IQ4_NL, 32, 2 + 16}, {LT_DTYPE_IQ4_XS, 256, 2 + 2 + 4 + 128},
        {LT_DTYPE_MXFP4, 32, 1 + 16}, {LT_DTYPE_I32, 1, 4}, {LT_DTYPE_I8, 1, 1},
        {LT_DTYPE_Q8A, 32, 32 + 4 + 2 * 2},
    };
    assert_int_equal(sizeof want / sizeof *want, LT_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const lt_dtype_traits *t = lt_dtype_get(want[i].t);
        assert_int_equal(t->block_elems, want[i].elems);
        assert_int_equal(t->block_bytes, want[i].bytes);
    }
    assert_null(lt_dtype_get(LT_DTYPE_COUNT));
    assert_null(lt_dtype_get((lt_dtype)-1));
}

static void names_and_ids_agree(void **state)
{
    (void)state;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        const lt_dtype_traits *d = lt_dtype_get((lt_dtype)t);
        lt_dtype back;
        assert_true(lt_dtype_from_name(d->name, &back));
        assert_int_equal(back, t);
        if (d->gguf_id < 0)
            continue;
        assert_true(lt_dtype_from_gguf((uint32_t)d->gguf_id, &back));
        assert_int_equal(back, t);
        assert_string_equal(lt_dtype_gguf_name((uint32_t)d->gguf_id), d->name);
    }
    lt_dtype t;
    assert_true(lt_dtype_from_name("q4_k", &t) && t == LT_DTYPE_Q4_K);
    assert_false(lt_dtype_from_name("Q4_K_M", &t));
    assert_false(lt_dtype_from_name("", &t));
}

/* A file that names one of these is refused by name, so the names must be there. */
static void refused_types_have_names(void **state)
{
    (void)state;
    static const struct { uint32_t id; const char *name; } refused[] = {
        {4, "Q4_2"}, {5, "Q4_3"}, {9, "Q8_1"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
        {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {25, "I16"}, {27, "I64"}, {28, "F64"}, {29, "IQ1_M"},
        {31, "Q4_0_4_4"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"}, {40, "NVFP4"}, {41, "Q1_0"},
        {42, "Q2_0"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lt_dtype t;
        assert_false(lt_dtype_from_gguf(refused[i].id, &t));
        assert_string_equal(lt_dtype_gguf_name(refused[i].id), refused[i].name);
    }
    for (uint32_t id = 0; id <= 42; id++)
        assert_non_null(lt_dtype_gguf_name(id));
    assert_null(lt_dtype_gguf_name(43));
    assert_null(lt_dtype_gguf_name(UINT32_MAX));
    lt_dtype t;
    assert_false(lt_dtype_from_gguf(UINT32_MAX, &t)); /* Q8A's -1 is not an id */
}

static void row_bytes_are_checked(void **state)
{
    (void)state;
    uint64_t n = 0;
    assert_true(lt_dtype_row_bytes(LT_DTYPE_Q4_K, 512, &n) && n == 288);
    assert_true(lt_dtype_row_bytes(LT_DTYPE_Q8A, 64, &n) && n == 80);
    assert_true(lt_dtype_row_bytes(LT_DTYPE_F32, 0, &n) && n == 0);
    assert_false(lt_dtype_row_bytes(LT_DTYPE_Q4_K, 255, &n));
    assert_false(lt_dtype_row_bytes(LT_DTYPE_Q4_0, 33, &n));
    assert_false(lt_dtype_row_bytes(LT_DTYPE_F32, UINT64_MAX / 4 + 1, &n));
    assert_true(lt_dtype_row_bytes(LT_DTYPE_F32, UINT64_MAX / 4, &n) && n == UINT64_MAX - 3);
    assert_false(lt_dtype_row_bytes(LT_DTYPE_Q8_0, UINT64_MAX / 32 * 32, &n));
    assert_false(lt_dtype_row_bytes(LT_DTYPE_COUNT, 32, &n));
}

static uint8_t *read_golden(size_t *bytes)
{
    FILE *f = fopen("tests/golden/dtype.bin", "rb");
    assert_non_null(f);
    static uint8_t buf[1 << 17];
    *bytes = fread(buf, 1, sizeof buf, f);
    assert_true(*bytes > 0 && *bytes < sizeof buf);
    fclose(f);
    return buf;
}

static void dequantisers_match_golden(void **state)
{
    (void)state;
    size_t bytes, at = 0;
    uint8_t *file = read_golden(&bytes);
    bool seen[LT_DTYPE_COUNT] = {false};
    while (at < bytes) {
        uint32_t head[4];
        memcpy(head, file + at, 16);
        at += 16;
        lt_dtype t;
        assert_true(lt_dtype_from_gguf(head[0], &t));
        const lt_dtype_traits *d = lt_dtype_get(t);
        assert_int_equal(d->block_bytes, head[2]);
        assert_int_equal(d->block_elems, head[3]);
        uint32_t n = head[1] * head[3];
        float got[2048];
        assert_true(n <= 2048 && at + head[1] * head[2] + n * 4 <= bytes);
        lt_dtype_to_f32(t, file + at, got, n);
        at += head[1] * head[2];
        for (uint32_t i = 0; i < n; i++, at += 4) {
            float want = lt__bits_f32(lt__load_u32(file + at));
            if (got[i] != want)
                fail_msg("%s: element %u is %.9g, expected %.9g", d->name, i, got[i], want);
        }
        seen[t] = true;
    }
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        assert_true(seen[t] == (lt_dtype_get((lt_dtype)t)->kind == LT_DTYPE_KIND_QUANT));
}

static void plain_types_convert(void **state)
{
    (void)state;
    float out[64];
    const int32_t ints[3] = {-7, 0, 1 << 20};
    lt_dtype_to_f32(LT_DTYPE_I32, ints, out, 3);
    assert_true(out[0] == -7 && out[1] == 0 && out[2] == 1048576);
    const int8_t bytes[2] = {-128, 127};
    lt_dtype_to_f32(LT_DTYPE_I8, bytes, out, 2);
    assert_true(out[0] == -128 && out[1] == 127);
    const uint16_t brain[2] = {0x3f80, 0xc0a0};
    lt_dtype_to_f32(LT_DTYPE_BF16, brain, out, 2);
    assert_true(out[0] == 1 && out[1] == -5);
    union { int8_t q[80]; float f[20]; } row = {{0}}; /* Q8A of 64: q, two scales, four sums */
    row.q[0] = 3, row.q[40] = -5;
    row.f[16] = 0.5f, row.f[17] = 2;
    lt_dtype_to_f32(LT_DTYPE_Q8A, row.q, out, 64);
    assert_true(out[0] == 1.5f && out[1] == 0 && out[40] == -10);
    uint8_t mx[17] = {255, 0x21};
    lt_dtype_to_f32(LT_DTYPE_MXFP4, mx, out, 32);
    assert_true(isnan(out[0]));
}

/* f16 from its definition, without bit tricks. */
static double f16_value(uint32_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double x = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -x : x;
}

static void f16_is_exact_both_ways(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = lt__f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true(h & 0x3ff ? isnan(x) : isinf(x) && (x < 0) == (h >> 15));
            if (h & 0x3ff)
                assert_int_equal(lt__f32_to_f16(x), h | 0x200);
            else
                assert_int_equal(lt__f32_to_f16(x), h);
            continue;
        }
        assert_true(x == f16_value(h));
        assert_int_equal(!!signbit(x), h >> 15);
        assert_int_equal(lt__f32_to_f16(x), h);
    }
}

/* Halfway between two neighbours goes to the even one; a hair to either side, to the near one. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double lo = f16_value(h), hi = h == 0x7bff ? 65536.0 : f16_value(h + 1);
        float mid = (float)((lo + hi) / 2);
        assert_true(mid == (lo + hi) / 2);
        for (uint32_t sign = 0; sign < 2; sign++) {
            float f = sign ? -1.0f : 1.0f;
            uint32_t s = sign << 15;
            assert_int_equal(lt__f32_to_f16(f * mid), s | (h + (h & 1)));
            assert_int_equal(lt__f32_to_f16(f * nextafterf(mid, 0)), s | h);
            assert_int_equal(lt__f32_to_f16(f * nextafterf(mid, 1e9f)), s | (h + 1));
        }
    }
    assert_int_equal(lt__f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(lt__f32_to_f16(1e-45f), 0);
    assert_int_equal(lt__f32_to_f16(-1e-45f), 0x8000);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t lo = h << 16;
        assert_int_equal(lt__f32_to_bf16(lt__bits_f32(lo)), h);
        assert_int_equal(lt__f32_to_bf16(lt__bits_f32(lo + 0x7fff)), h);
        assert_int_equal(lt__f32_to_bf16(lt__bits_f32(lo + 0x8000)), h + (h & 1));
        assert_int_equal(lt__f32_to_bf16(lt__bits_f32(0x80000000u + lo + 0x8001)), 0x8000 + h + 1);
        assert_int_equal(lt__f32_bits(lt__bf16_to_f32((uint16_t)h)), lo);
    }
    assert_int_equal(lt__f32_to_bf16(INFINITY), 0x7f80);
    assert_true(isnan(lt__bf16_to_f32(lt__f32_to_bf16(lt__bits_f32(0x7f800001u)))));
}

/* Distance from the true value in units of the last place of the true value. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void exp_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    float at = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t u = 0; u < 0x42b20000u; u += 499) { /* up to 89 */
            float x = lt__bits_f32(sign << 31 | u);
            if (x > 88.72f || x < -87.33f)
                continue;
            double e = ulps(lt__expf(x), exp(x));
            if (e > worst)
                worst = e, at = x;
        }
    }
    for (float x = -87.33f; x < 88.72f; x += 0x1p-12f) {
        double e = ulps(lt__expf(x), exp(x));
        if (e > worst)
            worst = e, at = x;
    }
    print_message("exp: worst error %.3f ulp at %.9g\n", worst, at);
    assert_true(worst < 2);
    assert_true(worst > 0.5); /* the measure itself can see an error */
}

static void exp_at_the_edges(void **state)
{
    (void)state;
    assert_true(isnan(lt__expf(NAN)));
    assert_true(lt__expf(INFINITY) == INFINITY && lt__expf(-INFINITY) == 0);
    assert_true(lt__expf(88.73f) == INFINITY && lt__expf(3e38f) == INFINITY);
    assert_true(isfinite(lt__expf(88.72f)) && lt__expf(88.72f) > 3.3e38f);
    assert_true(lt__expf(-87.34f) == 0 && lt__expf(-3e38f) == 0);
    assert_true(lt__expf(-87.33f) >= 0x1p-126f); /* never a subnormal */
    assert_true(lt__expf(0.0f) == 1 && lt__expf(-0.0f) == 1 && lt__expf(1e-45f) == 1);
    assert_true(signbit(lt__siluf(-200.0f)) && lt__siluf(-200.0f) == 0);
    assert_true(lt__siluf(200.0f) == 200 && lt__geluf(1e30f) == 1e30f && lt__geluf(-1e30f) == 0);
    assert_true(isnan(lt__siluf(NAN)) && isnan(lt__geluf(NAN)));
}

static void rows_of_halves_convert_as_each_does(void **state)
{
    (void)state;
    static uint16_t h[65536];
    static float f[65536];
    for (uint32_t i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    for (int brain = 0; brain < 2; brain++) {
        lt_dtype_to_f32(brain ? LT_DTYPE_BF16 : LT_DTYPE_F16, h, f, 65536);
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(lt__f32_bits(f[i]), lt__f32_bits(brain ? lt__bf16_to_f32(h[i]) : lt__f16_to_f32(h[i])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_halves_convert_as_each_does),
        cmocka_unit_test(sizes_follow_from_the_fields), cmocka_unit_test(names_and_ids_agree),
        cmocka_unit_test(refused_types_have_names),     cmocka_unit_test(row_bytes_are_checked),
        cmocka_unit_test(dequantisers_match_golden),    cmocka_unit_test(plain_types_convert),
        cmocka_unit_test(f16_is_exact_both_ways),       cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),  cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(exp_at_the_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
