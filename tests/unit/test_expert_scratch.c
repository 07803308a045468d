/* EXPERT_LINEAR in exactly the scratch that its row asks for, whatever the experts are: what lies behind stays as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ops.h"

#define BEHIND 8192 /* bytes that are watched */

typedef struct shape { lt_dtype t; int64_t experts, rows, cols, tokens, k; } shape;

static lt_view view(lt_dtype t, uint32_t ndim, int64_t a, int64_t b, int64_t c, const void *p)
{
    lt_view v = {.addr = (lt_addr)(uintptr_t)p, .dtype = t, .ndim = ndim, .dim = {a, b, c}};
    uint64_t row = 0;
    assert_true(lt_dtype_row_bytes(t, (uint64_t)v.dim[ndim - 1], &row));
    v.stride[ndim - 1] = lt_dtype_get(t)->block_bytes;
    v.stride[ndim - 2] = (int64_t)row;
    if (ndim == 3)
        v.stride[0] = b * (int64_t)row;
    return v;
}

/* x and w are zeros: only where is written matters here, tests/conformance has the values. */
static void run(lt_cpu_isa isa, lt_team *team, const shape *s, int32_t *ids)
{
    const bool quant = lt_dtype_get(s->t)->kind == LT_DTYPE_KIND_QUANT;
    lt_op_args a = {.op = LT_OP_EXPERT_LINEAR, .n_src = 3, .name = "experts"};
    a.src[0] = view(quant ? LT_DTYPE_Q8A : LT_DTYPE_F32, 2, s->tokens, s->cols, 0, NULL);
    a.src[1] = view(s->t, 3, s->experts, s->rows, s->cols, NULL);
    void *x = calloc((size_t)s->tokens, (size_t)a.src[0].stride[0]), *w = calloc((size_t)s->experts, (size_t)a.src[1].stride[0]);
    float *y = calloc((size_t)(s->tokens * s->k * s->rows), 4);
    a.src[0].addr = (lt_addr)(uintptr_t)x, a.src[1].addr = (lt_addr)(uintptr_t)w;
    a.src[2] = view(LT_DTYPE_I32, 2, s->tokens, s->k, 0, ids);
    a.dst = view(LT_DTYPE_F32, 3, s->tokens, s->k, s->rows, y);
    for (int64_t i = 0; i < s->tokens * s->k * s->rows; i++)
        y[i] = 1;
    const lt_cpu_row *row = lt__cpu_find(isa, &a);
    const size_t bytes = row->scratch ? row->scratch(&a, lt__team_threads(team)) : 0;
    uint8_t *scratch = aligned_alloc(64, (bytes + BEHIND + 63) & ~(size_t)63);
    memset(scratch, 0xa5, bytes + BEHIND);
    assert_int_equal(row->run(&a, team, scratch, bytes, NULL), LT_OK);
    for (size_t i = bytes; i < bytes + BEHIND; i++)
        if (scratch[i] != 0xa5)
            fail_msg("%s, %s, %u threads, %lld tokens, %lld columns: byte %zu behind %zu bytes of scratch was written", lt__cpu_isa_name(isa),
                     lt_dtype_get(s->t)->name, lt__team_threads(team), (long long)s->tokens, (long long)s->cols, i - bytes, bytes);
    for (int64_t i = 0; i < s->tokens * s->k * s->rows; i++)
        assert_true(y[i] == 0);
    free(scratch), free(x), free(w), free(y);
}

/* Tokens about the size of a chunk, and fewer of them with one expert than all; rows so long that chunks are short. */
static void nothing_is_written_behind_it(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {LT_DTYPE_F32, 3, 3, 16390, 65, 1}, {LT_DTYPE_F32, 3, 3, 16390, 70, 1}, {LT_DTYPE_F16, 3, 70, 520, 90, 2}, {LT_DTYPE_BF16, 5, 40, 300, 1, 4},
        {LT_DTYPE_F16, 2, 33, 64, 13, 1},   {LT_DTYPE_F32, 3, 40, 2100, 17, 1}, {LT_DTYPE_Q4_K, 4, 70, 512, 40, 3}, {LT_DTYPE_MXFP4, 33, 9, 96, 70, 8},
        {LT_DTYPE_Q8_0, 7, 33, 2880, 1, 7}, {LT_DTYPE_Q5_1, 128, 5, 32, 2, 3},
    };
    static const int64_t others[] = {0, 1, 5, 40, 64, 65}; /* so many pairs with another expert */
    lt_ctx *ctx;
    lt_err err = {0};
    assert_int_equal(lt_ctx_create(NULL, &ctx, &err), LT_OK);
    for (uint32_t threads = 1; threads <= 5; threads += 1 + threads / 3) {
        lt_team *team;
        assert_int_equal(lt__team_create(ctx, threads, &team, &err), LT_OK);
        for (int isa = LT_CPU_ISA_REF + 1; isa < LT_CPU_ISA_COUNT; isa++)
            for (size_t i = 0; lt__cpu_isa_supported((lt_cpu_isa)isa) && i < sizeof shapes / sizeof *shapes; i++)
                for (int o = 0; o < 6; o++) {
                    const shape *s = &shapes[i];
                    int32_t ids[90 * 8];
                    for (int64_t p = 0; p < s->tokens * s->k; p++)
                        ids[p] = s->tokens > 1 ? p < others[o] : (int32_t)(p % s->experts);
                    run((lt_cpu_isa)isa, team, s, ids);
                }
        lt__team_destroy(team);
    }
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_written_behind_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
