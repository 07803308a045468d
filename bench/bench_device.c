/* bench_device - what the machinery costs: a queued call, a queued launch of a tiny op, a sync,
 * fork and join of the team. Prints the best of many short repetitions, in ns each. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/cpu/team.h"
#include "base/mem.h"

enum { CALLS = 400, REPS = 200 };

static lt_status nothing(void *user, lt_err *err)
{
    (void)user;
    (void)err;
    return LT_OK;
}

static void empty(void *arg, uint32_t rank, uint32_t ranks)
{
    (void)arg;
    (void)rank;
    (void)ranks;
}

static void check(lt_status s, const lt_err *err)
{
    if (s == LT_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static uint64_t lower(uint64_t best, uint64_t start, uint64_t n)
{
    uint64_t each = (lt__now_ns() - start) / n;
    return each < best ? each : best;
}

static void bench_team(lt_ctx *ctx, uint32_t threads)
{
    lt_team *team;
    lt_err err;
    uint64_t best = UINT64_MAX;
    check(lt__team_create(ctx, threads, &team, &err), &err);
    for (int r = 0; r < REPS; r++) {
        uint64_t start = lt__now_ns();
        for (int i = 0; i < CALLS; i++)
            lt__team_run(team, empty, NULL);
        best = lower(best, start, CALLS);
    }
    printf("team of %u: fork and join %llu ns\n", threads, (unsigned long long)best);
    lt__team_destroy(team);
}

static void bench_queue(lt_ctx *ctx, const char *spec)
{
    lt_device *dev;
    lt_queue *q;
    lt_addr mem;
    lt_err err;
    check(lt_device_open(ctx, spec, &dev, &err), &err);
    check(lt_queue_create(dev, LT_QUEUE_COMPUTE, &q, &err), &err);
    check(lt_device_reserve(dev, 1 << 20, &mem, &err), &err);
    check(lt_device_commit(dev, mem, 1 << 20, &err), &err);
    check(lt_queue_fill(q, mem, 0, 1 << 20, &err), &err);
    lt_view v = {.addr = mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 8}, .stride = {32, 4}};
    lt_op_args add = {.op = LT_OP_ADD, .n_src = 2, .src = {v, v}, .dst = v, .name = "add"};
    add.src[1].addr = mem + 256;
    uint64_t call = UINT64_MAX, give = UINT64_MAX, launch = UINT64_MAX, sync = UINT64_MAX;
    for (int r = 0; r < REPS; r++) {
        uint64_t start = lt__now_ns();
        for (int i = 0; i < CALLS; i++)
            check(lt_queue_call(q, nothing, NULL, &err), &err);
        check(lt_queue_sync(q, &err), &err);
        call = lower(call, start, CALLS);
        start = lt__now_ns();
        for (int i = 0; i < CALLS; i++)
            check(lt__queue_launch(q, &add, &err), &err);
        give = lower(give, start, CALLS);
        check(lt_queue_sync(q, &err), &err);
        launch = lower(launch, start, CALLS);
        start = lt__now_ns();
        check(lt_queue_call(q, nothing, NULL, &err), &err);
        check(lt_queue_sync(q, &err), &err);
        sync = lower(sync, start, 1);
    }
    printf("%s: call %llu ns, tiny launch %llu ns of which giving it %llu, call and sync %llu ns\n", spec,
           (unsigned long long)call, (unsigned long long)launch, (unsigned long long)give, (unsigned long long)sync);
    lt_queue_destroy(q);
    lt_device_unreserve(dev, mem, 1 << 20);
    lt_device_close(dev);
}

int main(void)
{
    lt_ctx *ctx;
    lt_err err;
    check(lt_ctx_create(NULL, &ctx, &err), &err);
    bench_team(ctx, 1);
    bench_team(ctx, 2);
    bench_team(ctx, 4);
    bench_queue(ctx, "cpu:threads=1");
    bench_queue(ctx, "cpu:threads=2");
    bench_queue(ctx, "sim:vram=16M,threads=1");
    bench_queue(ctx, "sim:vram=16M,threads=1,clock=virtual");
    lt_ctx_destroy(ctx);
    return 0;
}
