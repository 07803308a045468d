/* bench_attention - attention over a prompt through the device: TFLOP/s and memory beside the views, by length and kind.
 *
 *     bench_attention [DEVICE=cuda] [heads=32] [kv_heads=32] [head_dim=128] [longest=32768] [only=flash|exact|sage]
 *
 * Causal, one sequence from position 0, an F16 cache in scattered pages. Best and median of 20 launches, events around
 * each, of the exact kind 3, up to 4096 tokens; the share is of half products of an H200 without sparsity, 989e12 a second. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"

#define PEAK 989e12
enum { REPS = 20 };

static void check(lt_status s, const lt_err *err)
{
    if (s == LT_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static lt_view view(lt_dtype t, int64_t d0, int64_t d1, int64_t d2, int64_t bytes)
{
    lt_view v = {.dtype = t, .ndim = d1 ? 3 : 1, .dim = {d0, d1, d2}};
    if (d1)
        v.stride[0] = d1 * d2 * bytes, v.stride[1] = d2 * bytes, v.stride[2] = bytes;
    else
        v.stride[0] = bytes;
    return v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct bench {
    lt_device *dev;
    lt_queue  *q;
    lt_event  *begin, *end;
    uint32_t   heads, kv_heads, dim;
    const char *only;
} bench;

/* Small halves, all different. */
static void fill(bench *b, lt_addr at, uint64_t bytes, bool floats)
{
    lt_err err;
    enum { PIECE = 1 << 20 };
    uint8_t *host = need(malloc(PIECE));
    uint32_t x = 12345;
    for (uint64_t i = 0; i < PIECE; i += 4) {
        x = x * 1664525u + 1013904223u;
        float f = (float)(x >> 8) / 16777216.0f - 0.5f;
        uint32_t h = 0x30003000u + (x >> 8 & 0x03ff03ffu) + (x & 0x80008000u);
        if (floats)
            memcpy(host + i, &f, 4);
        else
            memcpy(host + i, &h, 4);
    }
    for (uint64_t i = 0; i < bytes; i += PIECE)
        check(lt_queue_copy_in(b->q, at + i, host, lt__min_u64(PIECE, bytes - i), &err), &err);
    check(lt_queue_sync(b->q, &err), &err);
    free(host);
}

static void run(bench *b, int64_t tokens)
{
    static const char *const kinds[] = {"flash", "exact", "sage"};
    lt_err err;
    int64_t pages = (tokens + LT_KV_PAGE - 1) / LT_KV_PAGE;
    uint64_t part = (uint64_t)b->kv_heads * LT_KV_PAGE * b->dim * 2, qb = (uint64_t)tokens * b->heads * b->dim * 4;
    uint64_t cb = (uint64_t)pages * 2 * part, ib = lt__round_up((uint64_t)(tokens + pages) * 4, 4096), most = 0;
    lt_op_args a = {.op = LT_OP_ATTENTION, .n_src = 4, .prefill = true, .name = "attention"};
    a.params.ATTENTION = (lt_attention_params){.heads = b->heads, .scale = 0.088f,
        .kv = {.page_bytes = 2 * part, .v_offset = part, .kv_heads = b->kv_heads, .head_dim = b->dim, .dtype = LT_DTYPE_F16}};
    a.src[0] = a.dst = view(LT_DTYPE_F32, tokens, b->heads, b->dim, 4);
    a.src[1] = view(LT_DTYPE_I8, (int64_t)cb, 0, 0, 1);
    a.src[2] = view(LT_DTYPE_I32, tokens, 0, 0, 4);
    a.src[3] = view(LT_DTYPE_I32, pages, 0, 0, 4);
    for (int how = 0; how < LT_ATTENTION_COUNT; how++) {
        a.params.ATTENTION.how = (lt_attention)how;
        most = lt__max_u64(most, lt__device_scratch_bytes(b->dev, &a));
    }
    lt_addr base;
    lt_device_info info;
    lt_device_get_info(b->dev, &info);
    uint64_t total = lt__round_up(2 * qb + cb + ib + most + 4096, info.commit_bytes);
    check(lt_device_reserve(b->dev, total, &base, &err), &err);
    check(lt_device_commit(b->dev, base, total, &err), &err);
    a.src[0].addr = base, a.dst.addr = base + qb, a.src[1].addr = base + 2 * qb;
    a.src[2].addr = base + 2 * qb + cb, a.src[3].addr = a.src[2].addr + (uint64_t)tokens * 4;
    a.scratch = base + 2 * qb + cb + ib;
    int32_t *ints = need(malloc((size_t)(tokens + pages) * 4));
    for (int64_t i = 0; i < tokens; i++)
        ints[i] = (int32_t)i;
    for (int64_t i = 0; i < pages; i++)
        ints[tokens + i] = (int32_t)(i % 2 ? i : pages - 1 - (pages - 1) % 2 - i);
    check(lt_queue_copy_in(b->q, a.src[2].addr, ints, (uint64_t)(tokens + pages) * 4, &err), &err);
    fill(b, a.src[0].addr, qb, true);
    fill(b, a.src[1].addr, cb, false);
    double flops = 2.0 * (double)tokens * (double)(tokens + 1) * b->heads * b->dim;
    for (int how = 0; how < LT_ATTENTION_COUNT; how++) {
        double t[REPS];
        const char *why = "";
        a.params.ATTENTION.how = (lt_attention)how;
        if (!lt__device_supports(b->dev, &a, &why)) {
            printf("%6" PRId64 " tokens, %s: refused: %s\n", tokens, kinds[how], why);
            continue;
        }
        if ((how == LT_ATTENTION_EXACT && tokens > 4096) || (b->only && strcmp(b->only, kinds[how]) != 0))
            continue; /* tens of times slower */
        int reps = how == LT_ATTENTION_EXACT ? 3 : REPS;
        for (int i = -2; i < reps; i++) {
            check(lt_event_record(b->begin, b->q, &err), &err);
            check(lt__queue_launch(b->q, &a, &err), &err);
            check(lt_event_record(b->end, b->q, &err), &err);
            check(lt_queue_sync(b->q, &err), &err);
            if (i >= 0)
                t[i] = (double)(lt_event_time_ns(b->end) - lt_event_time_ns(b->begin)) * 1e-9;
        }
        qsort(t, (size_t)reps, sizeof *t, by_value);
        printf("%6" PRId64 " tokens, %-5s: %9.3f ms, %6.1f TFLOP/s (median %6.1f), %4.1f %% of peak; %.1f MiB beside the views\n", tokens,
               kinds[how], t[0] * 1e3, flops / t[0] * 1e-12, flops / t[reps / 2] * 1e-12, flops / t[0] / PEAK * 100,
               (double)lt__device_scratch_bytes(b->dev, &a) / 1048576);
        fflush(stdout);
    }
    free(ints);
    lt_device_decommit(b->dev, base, total);
    lt_device_unreserve(b->dev, base, total);
}

static uint32_t number(int argc, char **argv, const char *key, uint32_t otherwise)
{
    size_t n = strlen(key);
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], key, n) && argv[i][n] == '=')
            return (uint32_t)strtoul(argv[i] + n + 1, NULL, 10);
    return otherwise;
}

int main(int argc, char **argv)
{
    lt_ctx *ctx;
    lt_err err;
    bench b = {.heads = number(argc, argv, "heads", 32), .kv_heads = number(argc, argv, "kv_heads", 32), .dim = number(argc, argv, "head_dim", 128)};
    const char *spec = argc > 1 && !strchr(argv[1], '=') ? argv[1] : argc > 1 && strchr(argv[1], ':') ? argv[1] : "cuda";
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "only=", 5) == 0)
            b.only = argv[i] + 5;
    check(lt_ctx_create(NULL, &ctx, &err), &err);
    check(lt_device_open(ctx, spec, &b.dev, &err), &err);
    check(lt_queue_create(b.dev, LT_QUEUE_COMPUTE, &b.q, &err), &err);
    check(lt_event_create(b.dev, &b.begin, &err), &err);
    check(lt_event_create(b.dev, &b.end, &err), &err);
    printf("%s: %u heads of %u over %u\n", spec, b.heads, b.dim, b.kv_heads);
    for (int64_t n = 1024; n <= (int64_t)number(argc, argv, "longest", 32768); n *= 2)
        run(&b, n);
    lt_event_destroy(b.end);
    lt_event_destroy(b.begin);
    lt_queue_destroy(b.q);
    lt_device_close(b.dev);
    lt_ctx_destroy(ctx);
    return 0;
}
