/* bench_ops.c - each product by format and shape against what memory and the cores allow.
 *
 *     bench_ops [isa=ref|avx2|avx512] [threads=N] [only=NAME|experts] [tokens=N]
 *
 * One token: GB/s of weights, from buffers larger than the last cache, over the measured read
 * bandwidth of the same threads. 512 tokens, or N: 1e9 products of elements a second. Up to 8
 * tokens the weights come from memory too.
 *
 * experts: EXPERT_LINEAR, beside LINEAR of the same bytes: for one token a weight of as many rows as its
 * experts have together; for many each expert's weight with its share of the rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ops.h"
#include "base/mem.h"

#define POOL_BYTES ((size_t)192 << 20) /* weights are taken from here in turn, so that no cache holds them */
#define PREFILL 512
#define COLS_MOST 11008

typedef struct shape { lt_dtype t; int64_t rows, cols; const char *where; } shape;
static const shape shapes[] = {
    {LT_DTYPE_Q4_1, 576, 576, "smollm2 attn"},   {LT_DTYPE_Q4_1, 1536, 576, "smollm2 up"},
    {LT_DTYPE_Q4_1, 576, 1536, "smollm2 down"},  {LT_DTYPE_Q8_0, 49152, 576, "smollm2 head"},
    {LT_DTYPE_Q5_0, 1024, 640, "gemma3 q"},      {LT_DTYPE_Q5_0, 2048, 640, "gemma3 up"},
    {LT_DTYPE_Q8_0, 256, 640, "gemma3 v"},       {LT_DTYPE_Q4_K, 640, 1024, "gemma3 o"},
    {LT_DTYPE_Q6_K, 640, 2048, "gemma3 down"},   {LT_DTYPE_Q4_K, 640, 2048, "gemma3 down"},
    {LT_DTYPE_Q8_0, 262144, 640, "gemma3 head"},
    {LT_DTYPE_Q4_0, 2048, 2048, ""}, {LT_DTYPE_Q4_1, 2048, 2048, ""}, {LT_DTYPE_Q5_0, 2048, 2048, ""},
    {LT_DTYPE_Q5_1, 2048, 2048, ""}, {LT_DTYPE_Q8_0, 2048, 2048, ""}, {LT_DTYPE_Q2_K, 2048, 2048, ""},
    {LT_DTYPE_Q3_K, 2048, 2048, ""}, {LT_DTYPE_Q4_K, 2048, 2048, ""}, {LT_DTYPE_Q5_K, 2048, 2048, ""},
    {LT_DTYPE_Q6_K, 2048, 2048, ""}, {LT_DTYPE_IQ4_NL, 2048, 2048, ""}, {LT_DTYPE_IQ4_XS, 2048, 2048, ""},
    {LT_DTYPE_MXFP4, 2048, 2048, ""},
    {LT_DTYPE_F16, 2048, 2048, ""}, {LT_DTYPE_BF16, 2048, 2048, ""}, {LT_DTYPE_F32, 2048, 2048, ""},
    {LT_DTYPE_F16, 1536, 576, "smollm2 up"}, {LT_DTYPE_F16, 576, 1536, "smollm2 down"}, {LT_DTYPE_F16, 4096, 4096, "7b attn"},
    {LT_DTYPE_F16, 2048, 11008, "7b down"},
};

#define EXPERTS_MOST 8 /* of a token */
typedef struct mix { lt_dtype t; int64_t experts, k, rows, cols; const char *where; } mix;
static const mix mixes[] = {
    {LT_DTYPE_MXFP4, 32, 4, 2880, 2880, "gpt-oss"},   {LT_DTYPE_Q4_K, 32, 4, 2880, 2816, ""},
    {LT_DTYPE_Q4_K, 128, 8, 768, 2048, "qwen3 gate"}, {LT_DTYPE_Q6_K, 96, 8, 2048, 768, "qwen3 down"},
    {LT_DTYPE_F16, 32, 4, 1408, 2048, ""},
};

typedef struct bench {
    lt_cpu_isa isa;
    lt_team *team;
    uint8_t *pool, *act, *dst;
    double read_rate; /* bytes a second */
    int64_t tokens;
} bench;

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

typedef struct read_job { const uint64_t *p; uint64_t n; volatile uint64_t sink[LT_TEAM_MAX]; } read_job;
static void read_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    read_job *j = arg;
    uint64_t i, end, a = 0, b = 0, c = 0, d = 0;
    lt__team_range(j->n, 512, rank, ranks, &i, &end);
    for (; i + 8 <= end; i += 8) {
        __builtin_prefetch(j->p + i + 256);
        a ^= j->p[i] ^ j->p[i + 1], b ^= j->p[i + 2] ^ j->p[i + 3];
        c ^= j->p[i + 4] ^ j->p[i + 5], d ^= j->p[i + 6] ^ j->p[i + 7];
    }
    j->sink[rank] = a ^ b ^ c ^ d;
}
static double read_rate(bench *b)
{
    static read_job j;
    j.p = (const uint64_t *)(void *)b->pool, j.n = POOL_BYTES / 8;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t t = lt__now_ns();
        lt__team_run(b->team, read_rank, &j);
        best = lt__min_u64(best, lt__now_ns() - t);
    }
    return (double)POOL_BYTES / ((double)best * 1e-9);
}

static lt_view view2(void *p, lt_dtype t, int64_t rows, int64_t cols)
{
    uint64_t bytes = 0;
    if (!lt_dtype_row_bytes(t, (uint64_t)cols, &bytes))
        exit(2);
    return (lt_view){.addr = (lt_addr)(uintptr_t)p, .dtype = t, .ndim = 2, .dim = {rows, cols},
                     .stride = {(int64_t)bytes, lt_dtype_get(t)->block_bytes}};
}

/* Best time of one product in ns, over so many buffers taken in turn, 0: as few as one where many tokens share a weight. */
static double time_linear(bench *b, const shape *s, int64_t tokens, uint64_t turns, uint64_t budget_ns)
{
    lt_dtype at = lt_dtype_get(s->t)->kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32;
    lt_op_args a = {.op = LT_OP_LINEAR, .n_src = 2};
    a.src[0] = view2(b->act, at, tokens, s->cols);
    a.src[1] = view2(b->pool, s->t, s->rows, s->cols);
    a.dst = view2(b->dst, LT_DTYPE_F32, tokens, s->rows);
    const lt_cpu_row *row = lt__cpu_find(b->isa, &a);
    size_t bytes = row->scratch ? row->scratch(&a, lt__team_threads(b->team)) : 0;
    void *scratch = bytes ? need(aligned_alloc(64, (bytes + 63) & ~(size_t)63)) : NULL;
    uint64_t weight = (uint64_t)s->rows * (uint64_t)a.src[1].stride[0];
    uint64_t fit = POOL_BYTES / weight, at_most = turns ? turns : tokens <= 8 ? fit : 1;
    double best = 1e30;
    for (uint64_t start = lt__now_ns(), n = 0; n < 3 || lt__now_ns() - start < budget_ns; n++) {
        uint64_t t = lt__now_ns();
        for (uint64_t i = 0; i < at_most; i++) {
            a.src[1].addr = (lt_addr)(uintptr_t)(b->pool + i * weight);
            if (row->run(&a, b->team, scratch, bytes, NULL) != LT_OK)
                exit(3);
        }
        double ns = (double)(lt__now_ns() - t) / (double)at_most;
        best = ns < best ? ns : best;
    }
    free(scratch);
    return best;
}

static void bench_shape(bench *b, const shape *s)
{
    uint64_t row_bytes = 0;
    if (!lt_dtype_row_bytes(s->t, (uint64_t)s->cols, &row_bytes))
        exit(2);
    double bytes = (double)row_bytes * (double)s->rows, products = (double)s->rows * (double)s->cols;
    double one = time_linear(b, s, 1, 0, 200000000);
    double cell = bytes / one;
    printf("%-7s %7lld x %-5lld %-13s %9.2f us %6.2f GB/s %4.0f%%", lt_dtype_get(s->t)->name, (long long)s->rows,
           (long long)s->cols, s->where, one * 1e-3, cell, 100 * cell * 1e9 / b->read_rate);
    if (s->rows <= 4096) {
        double many = time_linear(b, s, b->tokens, 0, 200000000);
        printf(" %9.2f ms %7.1f GMAC/s", many * 1e-6, products * (double)b->tokens / many);
    }
    printf("\n");
}

/* Best time of one product; the experts go round, so that no cache holds the next. */
static double time_experts(bench *b, const mix *m, int64_t tokens, uint64_t budget_ns)
{
    static int32_t ids[PREFILL * EXPERTS_MOST];
    lt_dtype at = lt_dtype_get(m->t)->kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32;
    lt_op_args a = {.op = LT_OP_EXPERT_LINEAR, .n_src = 3};
    lt_view w = view2(b->pool, m->t, m->rows, m->cols);
    a.src[0] = view2(b->act, at, tokens, m->cols);
    a.src[1] = (lt_view){w.addr, m->t, 3, {m->experts, m->rows, m->cols}, {m->rows * w.stride[0], w.stride[0], w.stride[1]}};
    a.src[2] = view2(ids, LT_DTYPE_I32, tokens, m->k);
    a.dst = (lt_view){(lt_addr)(uintptr_t)b->dst, LT_DTYPE_F32, 3, {tokens, m->k, m->rows}, {m->k * m->rows * 4, m->rows * 4, 4}};
    const lt_cpu_row *row = lt__cpu_find(b->isa, &a);
    size_t bytes = row->scratch ? row->scratch(&a, lt__team_threads(b->team)) : 0;
    void *scratch = bytes ? need(aligned_alloc(64, (bytes + 63) & ~(size_t)63)) : NULL;
    const uint64_t turns = tokens == 1 ? (uint64_t)(m->experts / m->k) : 1;
    double best = 1e30;
    for (uint64_t start = lt__now_ns(), n = 0; n < 3 || lt__now_ns() - start < budget_ns; n++) {
        double ns = 0;
        for (uint64_t i = 0; i < turns; i++) {
            for (int64_t p = 0; p < tokens * m->k; p++) /* an odd step: each token has different experts */
                ids[p] = (int32_t)(((int64_t)i * m->k + p / m->k * 5 + p % m->k) % m->experts);
            uint64_t t = lt__now_ns();
            if (row->run(&a, b->team, scratch, bytes, NULL) != LT_OK)
                exit(3);
            ns += (double)(lt__now_ns() - t);
        }
        best = ns / (double)turns < best ? ns / (double)turns : best;
    }
    free(scratch);
    return best;
}

static void bench_mix(bench *b, const mix *m)
{
    const shape whole = {m->t, m->k * m->rows, m->cols, ""}, one = {m->t, m->rows, m->cols, ""};
    uint64_t row_bytes = 0;
    if (!lt_dtype_row_bytes(m->t, (uint64_t)m->cols, &row_bytes))
        exit(2);
    const double bytes = (double)row_bytes * (double)(m->rows * m->k), products = (double)(m->rows * m->cols * m->k);
    const double experts = time_experts(b, m, 1, 300000000), linear = time_linear(b, &whole, 1, 0, 300000000);
    printf("%-7s %3lld of %3lld, %4lld x %-4lld %-10s %9.2f us %6.2f GB/s, %3.0f%% of LINEAR's speed", lt_dtype_get(m->t)->name,
           (long long)m->k, (long long)m->experts, (long long)m->rows, (long long)m->cols, m->where, experts * 1e-3, bytes / experts,
           100 * linear / experts);
    const int64_t each = b->tokens * m->k / m->experts;
    if (each > 0) {
        const double many = time_experts(b, m, b->tokens, 300000000), parts = time_linear(b, &one, each, (uint64_t)m->experts, 300000000);
        printf(" %9.2f ms %7.1f GMAC/s, %3.0f%%", many * 1e-6, products * (double)b->tokens / many, 100 * parts * (double)m->experts / many);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    bench b = {.isa = lt__cpu_isa_best(), .tokens = PREFILL};
    uint32_t only_threads = 0;
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "isa=", 4) && lt__cpu_isa_from_name(argv[i] + 4, &b.isa) && lt__cpu_isa_supported(b.isa))
            continue;
        if (!strncmp(argv[i], "threads=", 8) && (only_threads = (uint32_t)atoi(argv[i] + 8)) > 0)
            continue;
        if (!strncmp(argv[i], "tokens=", 7) && (b.tokens = atoi(argv[i] + 7)) > 0 && b.tokens <= PREFILL)
            continue;
        if (!strncmp(argv[i], "only=", 5)) {
            only = argv[i] + 5;
            continue;
        }
        fprintf(stderr, "bench_ops: %s is not understood or not supported here\n", argv[i]);
        return 2;
    }
    b.pool = need(aligned_alloc(4096, POOL_BYTES));
    b.act = need(aligned_alloc(64, (size_t)PREFILL * COLS_MOST * 4));
    b.dst = need(aligned_alloc(64, (size_t)PREFILL * EXPERTS_MOST * 2880 * 4));
    /* Any bits are weights; small positive halves keep the sums finite, so no path is slower than usual. */
    for (size_t i = 0; i < POOL_BYTES; i++)
        b.pool[i] = (uint8_t)((i * 2654435761u >> 13) & 0x2f);
    memset(b.act, 0x3c, (size_t)PREFILL * COLS_MOST * 4);
    lt_ctx *ctx;
    lt_err err;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK)
        return 1;
    for (uint32_t n = only_threads ? only_threads : 1; n <= (only_threads ? only_threads : 2); n++) {
        if (lt__team_create(ctx, n, &b.team, &err) != LT_OK)
            return 1;
        b.read_rate = read_rate(&b);
        printf("isa %s, %u threads, read bandwidth %.2f GB/s\n", lt__cpu_isa_name(b.isa), n, b.read_rate * 1e-9);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            if (!only || !strcmp(only, lt_dtype_get(shapes[i].t)->name))
                bench_shape(&b, &shapes[i]);
        for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
            if (!only || !strcmp(only, lt_dtype_get(mixes[i].t)->name) || !strcmp(only, "experts"))
                bench_mix(&b, &mixes[i]);
        lt__team_destroy(b.team);
    }
    lt_ctx_destroy(ctx);
    free(b.pool), free(b.act), free(b.dst);
    return 0;
}
