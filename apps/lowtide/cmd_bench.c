/* cmd_bench.c - prefill and decode at depths, beside the floors that bytes and rates set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app.h"

#define MOST 16 /* lengths or depths in a list */

typedef struct list { uint32_t v[MOST]; int n; } list;

typedef struct bench {
    app      a;
    list     prompts, depths;
    uint32_t decode, repeat;
    uint64_t rng;
    int32_t *ids;
    json_t  *results;
} bench;

static lt_status no_memory(bench *b)
{
    snprintf(b->a.err.text, sizeof b->a.err.text, "no memory for the measurements");
    return b->a.err.status = LT_E_HOST_OOM;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static lt_status parse_list(bench *b, opt_id id, uint32_t dflt, list *out)
{
    const opt_value *v = &b->a.o->v[id];
    out->n = 1;
    out->v[0] = dflt;
    if (!v->set)
        return LT_OK;
    out->n = 0;
    for (const char *p = v->s; *p || p == v->s;) {
        char *end;
        unsigned long x = strtoul(p, &end, 10);
        if (*p < '0' || *p > '9' || x > 1u << 24 || out->n == MOST || (*end && *end != ',') || (*end == ',' && !end[1])) {
            snprintf(b->a.err.text, sizeof b->a.err.text, "--%s %s: expected at most %d whole numbers, separated by commas",
                     opt_rows[id].name, v->s, MOST);
            return b->a.err.status = LT_E_INVALID;
        }
        out->v[out->n++] = (uint32_t)x;
        p = *end ? end + 1 : end;
    }
    return LT_OK;
}

/* Random tokens: their arithmetic is that of any text. */
static void fill_ids(bench *b, uint32_t n)
{
    uint32_t vocab = lt_model_get_info(b->a.model)->vocab;
    for (uint32_t i = 0; i < n; i++) {
        b->rng = b->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        b->ids[i] = (int32_t)((b->rng >> 33) % vocab);
    }
}

/* A signal that comes when nothing of an eval is left to launch does not end that eval. */
static lt_status eval(bench *b, const int32_t *ids, uint32_t n)
{
    const float *logits;
    lt_status s = lt_session_eval(b->a.session, ids, n, &logits, &b->a.err);
    if (s == LT_OK && app_interrupted()) {
        s = b->a.err.status = LT_E_CANCELED;
        snprintf(b->a.err.text, sizeof b->a.err.text, "stopped");
    }
    return s;
}

static lt_status go_to(bench *b, uint32_t depth)
{
    lt_status s = lt_session_truncate(b->a.session, 0, &b->a.err);
    fill_ids(b, depth);
    return s == LT_OK && depth ? eval(b, b->ids, depth) : s;
}

/* What came over the link a second, beside the rate of pinned copies in the profile; 0 where nothing streams. */
static void add_result(bench *b, const char *test, uint32_t n, uint32_t depth, const double *tps, double floor, double link)
{
    double mean = 0, var = 0, best = b->a.profile.link_rate;
    for (uint32_t i = 0; i < b->repeat; i++)
        mean += tps[i] / b->repeat;
    for (uint32_t i = 0; i < b->repeat; i++)
        var += (tps[i] - mean) * (tps[i] - mean) / b->repeat;
    bool streams = lt_plan_get_info(b->a.plan)->streamed_bytes > 0 && best > 0;
    json_array_append_new(b->results, json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "test", test, "tokens", (int)n,
                                                "depth", (int)depth, "tps", mean, "stddev", sqrt(var), "floor_tps", floor,
                                                "of_floor", floor > 0 ? mean / floor : 0, "link_rate", streams ? link : 0,
                                                "of_link", streams ? link / best : 0));
    if (b->a.o->v[OPT_json].set)
        return;
    printf("%-8s %6u tokens at depth %6u  %10.2f +- %7.2f tok/s  floor %10.2f  %5.1f%%", test, n, depth, mean, sqrt(var), floor,
           floor > 0 ? 100 * mean / floor : 0);
    if (streams)
        printf("  link %6.2f of %6.2f GB/s  %5.1f%%", link * 1e-9, best * 1e-9, 100 * link / best);
    putchar('\n');
    fflush(stdout); /* each takes long enough to be wanted at once */
}

static lt_status measure(bench *b, bool prefill, uint32_t n, uint32_t depth)
{
    double *tps = calloc(b->repeat, sizeof *tps), floor = 0, seconds = 0;
    uint64_t bytes = 0;
    lt_status s = tps ? LT_OK : (no_memory(b));
    for (uint32_t r = 0; s == LT_OK && r <= b->repeat; r++) { /* the first does not count */
        lt_report before, after;
        if ((s = go_to(b, depth)) != LT_OK)
            break;
        fill_ids(b, n);
        lt_session_get_report(b->a.session, &before);
        uint64_t link = before.h2d_bytes + before.mapped_bytes;
        double t0 = now();
        if (prefill) {
            s = eval(b, b->ids, n);
        } else {
            if (!depth) /* a first token on an empty cache counts as a prompt */
                s = eval(b, b->ids, 1);
            lt_report warm;
            lt_session_get_report(b->a.session, &warm);
            link = warm.h2d_bytes + warm.mapped_bytes;
            t0 = now();
            for (uint32_t i = !depth; s == LT_OK && i < n + !depth; i++)
                s = eval(b, &b->ids[i % n], 1);
        }
        double t = now() - t0;
        lt_session_get_report(b->a.session, &after);
        const lt_phase *p0 = prefill ? &before.prefill : &before.decode, *p1 = prefill ? &after.prefill : &after.decode;
        double floor_seconds = (p1->floor_tps > 0 ? (double)p1->tokens / p1->floor_tps : 0) -
                               (p0->floor_tps > 0 ? (double)p0->tokens / p0->floor_tps : 0);
        floor = floor_seconds > 0 ? n / floor_seconds : 0;
        if (!r)
            continue;
        tps[r - 1] = n / t;
        seconds += t;
        bytes += after.h2d_bytes + after.mapped_bytes - link;
    }
    if (s == LT_OK)
        add_result(b, prefill ? "prefill" : "decode", n, depth, tps, floor, seconds > 0 ? (double)bytes / seconds : 0);
    free(tps);
    return s;
}

static lt_status run_all(bench *b)
{
    uint32_t most = 0, deepest = 0;
    for (int i = 0; i < b->prompts.n; i++)
        most = b->prompts.v[i] > most ? b->prompts.v[i] : most;
    for (int i = 0; i < b->depths.n; i++)
        deepest = b->depths.v[i] > deepest ? b->depths.v[i] : deepest;
    most = most > b->decode + 1 ? most : b->decode + 1;
    uint32_t ctx = lt_plan_get_info(b->a.plan)->ctx;
    if ((uint64_t)most + deepest > ctx) {
        snprintf(b->a.err.text, sizeof b->a.err.text, "%u tokens at depth %u: the context of this plan holds %u; give --ctx", most,
                 deepest, ctx);
        return b->a.err.status = LT_E_NO_FIT;
    }
    b->ids = calloc((size_t)(most > deepest ? most : deepest) + 1, sizeof *b->ids);
    if (!b->ids)
        return no_memory(b);
    lt_status s = LT_OK;
    for (int d = 0; d < b->depths.n && s == LT_OK; d++) {
        for (int i = 0; i < b->prompts.n && s == LT_OK; i++)
            if (b->prompts.v[i])
                s = measure(b, true, b->prompts.v[i], b->depths.v[d]);
        if (s == LT_OK && b->decode)
            s = measure(b, false, b->decode, b->depths.v[d]);
    }
    return s;
}

static lt_status prepare(bench *b)
{
    app *a = &b->a;
    lt_status s;
    if ((s = parse_list(b, OPT_prompt_len, 512, &b->prompts)) != LT_OK || (s = parse_list(b, OPT_depth, 0, &b->depths)) != LT_OK ||
        (s = app_open_device(a)) != LT_OK || (s = app_open_model(a)) != LT_OK)
        return s;
    uint64_t most = b->decode + 1u, deepest = 0;
    for (int i = 0; i < b->prompts.n; i++)
        most = b->prompts.v[i] > most ? b->prompts.v[i] : most;
    for (int i = 0; i < b->depths.n; i++)
        deepest = b->depths.v[i] > deepest ? b->depths.v[i] : deepest;
    if ((s = app_make_plan(a, 1, most + deepest, 0)) != LT_OK)
        return s;
    if (!a->o->v[OPT_quiet].set && !a->o->v[OPT_json].set)
        app_print_plan(a, stderr);
    return app_start(a);
}

int cmd_bench(const opts *o)
{
    bench b = {.rng = 42, .results = json_array(), .repeat = o->v[OPT_repeat].set ? (uint32_t)o->v[OPT_repeat].u : 3,
               .decode = o->v[OPT_tokens].set ? (uint32_t)o->v[OPT_tokens].u : 128};
    int code = 0;
    lt_status s = app_open(&b.a, o);
    if (s == LT_OK) {
        app_catch_interrupt(&b.a);
        s = prepare(&b);
    }
    if (s == LT_OK) {
        app_catch_interrupt(&b.a);
        s = run_all(&b);
        app_progress_end();
    }
    if (s != LT_OK)
        code = app_fail(&b.a);
    if (s == LT_OK || (b.a.session && s == LT_E_CANCELED)) { /* stopped: what was measured counts */
        json_t *j = app_report_json(&b.a);
        json_object_set(j, "results", b.results);
        if (o->v[OPT_json].set)
            app_print_json(json_incref(j));
        if (!app_write_report(&b.a, j) && code == 0)
            code = 5;
    }
    json_decref(b.results);
    free(b.ids);
    if (app_close(&b.a) != LT_OK && code == 0)
        code = app_fail(&b.a);
    return code;
}
