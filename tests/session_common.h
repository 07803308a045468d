/* session_common.h - a tiny synthetic model, and a run of it under any budget, for tests. */
#ifndef TESTS_SESSION_COMMON_H
#define TESTS_SESSION_COMMON_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lowtide/plan.h"
#include "lowtide/session.h"

/* The build folder: CTest sets LT_BUILD; a program started by hand finds ../tests beside itself. */
static inline const char *build_folder(void)
{
    const char *b = getenv("LT_BUILD");
    return b ? b : "build";
}

/* Makes the model once per process in /tmp; the caller unlinks it. */
static inline const char *make_model(char path[64], const char *args)
{
    char cmd[1024];
    snprintf(path, 64, "/tmp/lt-model-%d-XXXXXX.gguf", (int)getpid());
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    snprintf(cmd, sizeof cmd, "%s/tests/mkmodel %s -o %s >/dev/null", build_folder(), args, path);
    if (system(cmd) != 0)
        fail_msg("%s failed", cmd);
    return path;
}

#define TINY_LLAMA "--arch llama --layers 3 --embd 128 --ff 256 --heads 4 --kv-heads 2 --head-dim 32 --vocab 512 --ctx 512 --type Q8_0 --seed 5"
#define TINY_GEMMA "--arch gemma3 --layers 6 --embd 128 --ff 256 --heads 4 --kv-heads 2 --head-dim 32 --vocab 512 --ctx 1024 --type Q8_0 --seed 6"

/* Profiles are of no interest here and take time: one fixed for all. */
static inline lt_profile test_profile(void)
{
    lt_profile p = {.version = 1, .read_rate = 1e9, .cached_rate = 4e9, .link_rate = 12e9, .memory_rate = 1e10,
                    .attend_rate = 1e9, .launch_ns = 1000};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        p.dot_rate[t] = 5e9;
        p.gemm_rate[t] = 5e10;
    }
    return p;
}

/* A session with all it stands on; hash and next are for tests that walk a sequence. */
typedef struct session_rig { lt_device *dev; lt_model *m; lt_plan *p; lt_session *s; uint32_t vocab; lt_err err; uint64_t hash; int32_t next; } session_rig;

static inline session_rig open_session(lt_ctx *ctx, const char *path, const char *spec, uint64_t budget, uint32_t n_ctx, uint32_t batch,
                                       uint32_t rows, const lt_session_desc *sd)
{
    session_rig r = {.hash = 1};
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.budget_bytes = budget;
    d.ctx = n_ctx;
    d.batch = batch;
    d.rows = rows;
    if (lt_device_open(ctx, spec, &r.dev, &r.err) != LT_OK || lt_model_open(ctx, path, &r.m, &r.err) != LT_OK ||
        lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err) != LT_OK ||
        lt_session_create(r.m, r.dev, r.p, sd, &r.s, &r.err) != LT_OK)
        fail_msg("%s", r.err.text);
    r.vocab = lt_model_get_info(r.m)->vocab;
    return r;
}

static inline void close_session(session_rig *r)
{
    lt_session_destroy(r->s);
    lt_plan_destroy(r->p);
    lt_model_close(r->m);
    lt_device_close(r->dev);
}

typedef struct job {
    const char *model, *device;
    uint64_t    budget;       /* 0: unlimited */
    uint32_t    ctx, batch;
    int         prompt, generate;
    lt_offload  offload;
} job;

typedef struct outcome {
    lt_status status;
    lt_err    err;
    int32_t   ids[64];
    int       n;
    uint64_t  logits_hash; /* of every row of logits seen */
    lt_report report;
    lt_plan_info plan;
} outcome;

static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static inline lt_status run_session(const job *j, lt_session *s, uint32_t vocab, outcome *o)
{
    int32_t prompt[512];
    const float *logits;
    for (int i = 0; i < j->prompt; i++)
        prompt[i] = (int32_t)((uint32_t)(i * 7919 + 13) % vocab);
    lt_status st = lt_session_eval(s, prompt, (size_t)j->prompt, &logits, &o->err);
    while (st == LT_OK && o->n < j->generate) {
        o->logits_hash = hash_bytes(o->logits_hash, logits, vocab * sizeof *logits);
        int32_t best = 0;
        for (uint32_t i = 1; i < vocab; i++)
            if (logits[i] > logits[best])
                best = (int32_t)i;
        o->ids[o->n++] = best;
        st = lt_session_eval(s, &best, 1, &logits, &o->err);
    }
    if (st == LT_OK)
        st = lt_session_check(s, &o->err);
    return st;
}

/* A whole run in ctx: device, model, plan, session; everything closed again. */
static inline outcome run_job(lt_ctx *ctx, const job *j)
{
    outcome o = {.logits_hash = UINT64_C(14695981039346656037)};
    lt_device *dev = NULL;
    lt_model *m = NULL;
    lt_plan *p = NULL;
    lt_session *s = NULL;
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.budget_bytes = j->budget;
    d.ctx = j->ctx;
    d.batch = j->batch;
    d.offload = j->offload;
    o.status = lt_device_open(ctx, j->device, &dev, &o.err);
    if (o.status == LT_OK)
        o.status = lt_model_open(ctx, j->model, &m, &o.err);
    if (o.status == LT_OK)
        o.status = lt_plan_create(m, dev, &prof, &d, &p, &o.err);
    if (o.status == LT_OK)
        o.status = lt_session_create(m, dev, p, NULL, &s, &o.err);
    if (o.status == LT_OK) {
        o.plan = *lt_plan_get_info(p);
        o.status = run_session(j, s, lt_model_get_info(m)->vocab, &o);
        lt_session_get_report(s, &o.report);
    }
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_model_close(m);
    lt_device_close(dev);
    return o;
}

/* One that fits its budget and keeps to its plan. */
static inline outcome must_run(lt_ctx *ctx, const job *j)
{
    outcome o = run_job(ctx, j);
    if (o.status != LT_OK)
        fail_msg("%s at %lu bytes: %s", j->model, j->budget, o.err.text);
    assert_true(o.report.peak_bytes <= o.report.budget_bytes);
    assert_true(fabs((double)o.report.peak_bytes / (double)o.plan.predicted_peak_bytes - 1) <= 0.02);
    return o;
}

#endif
