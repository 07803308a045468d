/* fail=CALL:N: the Nth call of each kind that a device makes of its driver fails, for N from 1 on, in short runs: the undisturbed
 * bits, or a typed error whose sentence names what failed; nothing left of the host or the device, and no warning of such.
 *
 * On the card of LT_TEST_CARD, on a simulated one, and on a driver made of host memory, where the cpu computes. */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "backend/cpu/hostdev.h"
#include "backend/cuda/device.h"
#include "backend/cuda/images.h"
#include "base/ctx.h"
#include "fake_cuda/fake_cuda.h"
#include "session_common.h"

#define MIB ((uint64_t)1 << 20)
#define NEVER UINT64_C(1000000000) /* counted, not reached */
#define MOST 40                    /* runs for one call in one kind of run; what is more is visited in strides */
#define LEAST 4
#define SMALL "--arch llama --layers 2 --embd 256 --ff 1024 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 512 --type F32 --seed 5"
#define LARGE "--arch llama --layers 8 --embd 1024 --ff 2816 --heads 16 --kv-heads 4 --head-dim 64 --vocab 2000 --ctx 512 --type Q8_0 --seed 5"

/* Weights through the ring; read where they lie; through the ring, then all on the card, then the ring again; all on the card. */
typedef enum kind { STREAMED, MAPPED, CHANGED, RESIDENT, KINDS } kind;
static const char *const kind_names[] = {"streamed", "mapped", "changed", "resident"};
enum { S = 1 << STREAMED, M = 1 << MAPPED, C = 1 << CHANGED, R = 1 << RESIDENT, ALL = S | M | C | R };

typedef struct call {
    const char *name, *more; /* more: options without which no run makes such calls */
    unsigned    kinds;       /* 0: no session makes any */
    lt_status   status[2];   /* what it may end in; LT_OK alone: is absorbed, whatever the run */
    const char *words;       /* one of which its sentence has; NULL: any sentence */
} call;

static const call cuda_calls[LT_CUDA_FAULT_COUNT] = {
    [LT_CUDA_FAULT_reserve]  = {"reserve", "", ALL, {LT_E_DEVICE_OOM}, "address space"},
    [LT_CUDA_FAULT_create]   = {"create", "", ALL, {LT_E_DEVICE_OOM}, "cuMemCreate"},
    [LT_CUDA_FAULT_map]      = {"map", "", ALL, {LT_E_DEVICE_OOM}, "cuMemMap"},
    [LT_CUDA_FAULT_access]   = {"access", "", ALL, {LT_E_DEVICE_OOM}, "cuMemSetAccess"},
    [LT_CUDA_FAULT_alloc]    = {"alloc", "vmm=0", S | R, {LT_E_DEVICE_OOM}, "out of memory"},
    [LT_CUDA_FAULT_register] = {"register", "", ALL, {LT_E_HOST_OOM, LT_E_UNSUPPORTED}, "page-lock|pin"},
    [LT_CUDA_FAULT_copy]     = {"copy", "", ALL, {LT_E_DEVICE_LOST}, "copy"},
    [LT_CUDA_FAULT_launch]   = {"launch", "", ALL, {LT_E_DEVICE_LOST}, "launch of"},
    [LT_CUDA_FAULT_record]   = {"record", "", ALL, {LT_E_DEVICE_LOST}, "record"},
    [LT_CUDA_FAULT_wait]     = {"wait", "", ALL, {LT_E_DEVICE_LOST}, "wait"},
    [LT_CUDA_FAULT_call]     = {"call", "", 0, {LT_E_DEVICE_LOST}, "host call|copy_in|copy_out"}, /* below, with a queue alone */
    [LT_CUDA_FAULT_load]     = {"load", "", S, {LT_E_DEVICE_OOM}, "family"},
    [LT_CUDA_FAULT_graph]    = {"graph", "", S | R, {LT_OK}, NULL},
    [LT_CUDA_FAULT_managed]  = {"managed", "managed=1", S | C, {LT_E_DEVICE_OOM}, "managed memory"},
};
static const call sim_calls[LT_FAULT_COUNT] = {
    [LT_FAULT_COMMIT]     = {"commit", "", ALL, {LT_E_DEVICE_OOM}, "commit"},
    [LT_FAULT_COPY]       = {"copy", "", ALL, {LT_E_DEVICE_LOST}, "copy"},
    [LT_FAULT_LAUNCH]     = {"launch", "", ALL, {LT_E_DEVICE_LOST}, "fault injected"},
    [LT_FAULT_PIN]        = {"pin", "", ALL, {LT_E_HOST_OOM}, "page-lock|pin"},
    [LT_FAULT_READ]       = {"read", "", ALL, {LT_E_IO}, "read"},
    [LT_FAULT_MAP]        = {"map", "", ALL, {LT_E_IO, LT_E_HOST_OOM}, "map"},
    [LT_FAULT_HOST_ALLOC] = {"alloc", "", ALL, {LT_E_HOST_OOM}, NULL},
};

/* --- a device: a card, a simulated one, or a driver of host memory that the cpu computes for ------ */

typedef struct outcome_of {
    lt_status status;
    lt_err    err;     /* the first */
    bool      went_on; /* after an error: an answer all the same */
    int       n;
    uint64_t  hash, left, mapped;
    bool      opened;
    lt_plan_info plan;
} result;

typedef struct sweep {
    const char *spec, *model;
    double      seconds; /* where runs take long fewer calls are made to fail, to end in about these */
    bool        cuda, computed, blank; /* computed: by the cpu; blank: by nobody, so that no run gets to an answer */
    const call *calls;
    size_t      n_calls;
    unsigned    only; /* a bit for each */
    lt_ctx     *keep_ctx;
    lt_device  *keep;  /* open all the while: a card's context is made once, and what leaks in it stays to be seen */
    int         runs, met, absorbed, reported;
} sweep;

static const fake_cuda_control *fake;
static struct { lt_ctx *ctx; lt_device *dev; lt_queue *q; } host;
static lt_device_vt computed_vt;
static char running[400], complaint[400];

static void too_long(int signal)
{
    static const char text[] = "\nhangs: ";
    ssize_t ignored = write(2, text, sizeof text - 1);
    ignored = write(2, running, strlen(running));
    ignored = write(2, "\n", 1);
    (void)ignored, (void)signal;
    _exit(1);
}

/* What is left behind is only warned of, and taken back: by then the caller forgot it. */
static void listen(void *user, lt_log_level level, const char *area, const char *text)
{
    (void)user, (void)area;
    bool left = strstr(text, "never un") || strstr(text, "still there") || strstr(text, "; ignored");
    if (left && level <= LT_LOG_WARN && !*complaint)
        snprintf(complaint, sizeof complaint, "%s", text);
}

static lt_addr host_address(lt_addr a) { return a >= FAKE_CUDA_BIAS ? a - FAKE_CUDA_BIAS : a; }

static lt_status launch_on_host(lt_queue *q, const lt_op_args *args, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(q->dev);
    lt_op_args a = *args;
    lt_status s = lt__cuda_queue_sync(q, err);
    if (s == LT_OK && lt__cuda_fault(d, LT_CUDA_FAULT_launch))
        s = lt__cuda_fail(d, err, LT_CU_LAUNCH_FAILED, "%s: launch of a kernel", a.name);
    if (s != LT_OK)
        return s;
    a.dst.addr = host_address(a.dst.addr);
    for (uint32_t i = 0; i < a.n_src; i++)
        a.src[i].addr = host_address(a.src[i].addr);
    s = lt__queue_launch(host.q, &a, err);
    return s == LT_OK ? lt_queue_sync(host.q, err) : s;
}

static bool host_supports(const lt_device *dev, const lt_op_args *args, const char **why)
{
    return (void)dev, lt__device_supports(host.dev, args, why);
}

static uint64_t host_scratch(const lt_device *dev, const lt_op_args *args) { return (void)dev, lt__device_scratch_bytes(host.dev, args); }

static void let_the_cpu_compute(lt_device *dev)
{
    computed_vt = *dev->vt;
    computed_vt.supports = host_supports;
    computed_vt.scratch_bytes = host_scratch;
    computed_vt.launch = launch_on_host;
    computed_vt.prepare = NULL;
    computed_vt.list_compile = NULL;
    computed_vt.list_run = NULL;
    computed_vt.list_free = NULL;
    dev->vt = &computed_vt;
}

static uint64_t left_of(const sweep *w, lt_device *dev, size_t point)
{
    if (w->cuda)
        return atomic_load(&lt__cuda_of(dev)->fail_in[point]);
    bool of_ctx = point == LT_FAULT_READ || point == LT_FAULT_MAP || point == LT_FAULT_HOST_ALLOC;
    if (point >= LT_FAULT_COUNT)
        return NEVER;
    return atomic_load(of_ctx ? &dev->ctx->fail_in[point] : &((lt_hostdev *)dev)->fail_in[point]);
}

/* --- a run ------------------------------------------------------------------------------------------ */

static void note(result *r, lt_status s, const lt_err *err)
{
    if (s != LT_OK && r->err.status == LT_OK)
        r->err = *err, r->err.status = s;
}

/* A token that was refused is given again once: an error may be of one call only. */
static lt_status feed(lt_session *s, result *r, const int32_t *ids, size_t n, uint32_t vocab, int32_t *next)
{
    const float *logits;
    lt_err err = {0};
    lt_status st = lt_session_eval(s, ids, n, &logits, &err);
    note(r, st, &err);
    if (st != LT_OK && n == 1)
        st = lt_session_eval(s, ids, n, &logits, &err);
    if (st != LT_OK)
        return st;
    r->hash = hash_bytes(r->hash, logits, vocab * sizeof *logits);
    *next = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[*next])
            *next = (int32_t)i;
    r->n++;
    return LT_OK;
}

static lt_status answer(lt_session *s, const lt_plan_info *full, kind k, uint32_t vocab, result *r)
{
    int32_t ids[24], next;
    lt_err err = {0};
    for (int i = 0; i < 24; i++)
        ids[i] = (int32_t)((uint32_t)(i * 7919 + 13) % vocab);
    lt_status st = feed(s, r, ids, 24, vocab, &next);
    for (int i = 0; i < 5 && st == LT_OK; i++) {
        int32_t id = next;
        if (k == CHANGED && (i == 1 || i == 3))
            note(r, lt_session_rebudget(s, i == 1 ? full->predicted_peak_bytes : r->plan.budget_bytes, &err), &err);
        st = feed(s, r, &id, 1, vocab, &next);
    }
    if (st == LT_OK)
        note(r, st = lt_session_check(s, &err), &err);
    return st;
}

/* Budgets are of the plan for this very device: what opening it takes differs by some MiB. */
static lt_status plan_for(const lt_model *m, lt_device *dev, kind k, lt_plan **out, lt_plan_info *full, lt_err *err)
{
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.ctx = 256;
    d.batch = 16;
    lt_status s = lt_plan_create(m, dev, &prof, &d, out, err);
    if (s != LT_OK)
        return s;
    *full = *lt_plan_get_info(*out);
    if (k == RESIDENT)
        return LT_OK;
    lt_plan_destroy(*out);
    *out = NULL;
    d.budget_bytes = full->smallest_budget_bytes + (full->predicted_peak_bytes - full->smallest_budget_bytes) / 4;
    d.offload = k == MAPPED ? LT_OFFLOAD_MAPPED : LT_OFFLOAD_STREAM;
    return lt_plan_create(m, dev, &prof, &d, out, err);
}

static void run_in(lt_ctx *ctx, const sweep *w, const char *spec, size_t point, kind k, result *r)
{
    lt_device *dev = NULL;
    lt_model *m = NULL;
    lt_plan *p = NULL;
    lt_session *s = NULL;
    lt_plan_info full;
    lt_err err = {0};
    lt_status st = lt_device_open(ctx, spec, &dev, &err);
    r->opened = st == LT_OK;
    if (st == LT_OK && w->computed)
        let_the_cpu_compute(dev);
    if (st == LT_OK)
        st = lt_model_open(ctx, w->model, &m, &err);
    if (st == LT_OK)
        st = plan_for(m, dev, k, &p, &full, &err);
    if (st == LT_OK)
        st = lt_session_create(m, dev, p, NULL, &s, &err);
    note(r, st, &err);
    if (st == LT_OK) {
        lt_report rep;
        r->plan = *lt_plan_get_info(p);
        st = answer(s, &full, k, lt_model_get_info(m)->vocab, r);
        lt_session_get_report(s, &rep);
        r->mapped = rep.mapped_bytes;
    }
    r->status = st;
    r->went_on = st == LT_OK && r->err.status != LT_OK;
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_model_close(m);
    if (dev)
        r->left = left_of(w, dev, point); /* a context's count is taken back at the close */
    lt_device_close(dev);
}

static void spec_of(char out[480], const sweep *w, const call *c, uint64_t n)
{
    int used = snprintf(out, 480, "%s%c%s%sfail=%s:%lu", w->spec, strchr(w->spec, ':') ? ',' : ':', c->more, *c->more ? "," : "", c->name, n);
    assert_true(used < 480);
}

static fake_cuda_counts fake_counts(void)
{
    fake_cuda_counts c = {0};
    if (fake)
        fake->counts(&c);
    return c;
}

static void nothing_is_left(lt_ctx *ctx, const fake_cuda_counts *before)
{
    fake_cuda_counts now = fake_counts();
    if (lt_ctx_host_bytes(ctx) != 0)
        fail_msg("%s leaked %lu bytes", running, lt_ctx_host_bytes(ctx));
    if (*complaint)
        fail_msg("%s: %s", running, complaint);
    if (now.violations)
        fail_msg("%s: %lu rules broken, the first: %s", running, now.violations, now.violation);
    if (now.held_bytes != before->held_bytes || now.registrations != before->registrations || now.streams != before->streams ||
        now.events != before->events || now.reservations != before->reservations || now.handles != before->handles ||
        now.allocations != before->allocations || now.modules != before->modules || now.graphs != before->graphs || now.contexts != before->contexts)
        fail_msg("%s left something with the driver: %lu bytes, %lu registrations, %lu streams, %lu events more", running,
                 now.held_bytes - before->held_bytes, now.registrations - before->registrations, now.streams - before->streams,
                 now.events - before->events);
}

static result run(sweep *w, size_t point, uint64_t n, kind k)
{
    result r = {.hash = UINT64_C(14695981039346656037)};
    fake_cuda_counts before = fake_counts();
    lt_ctx_desc d = lt_ctx_desc_default();
    lt_ctx *ctx;
    char spec[480];
    d.log = listen;
    *complaint = 0;
    spec_of(spec, w, &w->calls[point], n);
    snprintf(running, sizeof running, "%.300s, %s", spec, kind_names[k]);
    assert_int_equal(lt_ctx_create(&d, &ctx, NULL), LT_OK);
    alarm(60);
    run_in(ctx, w, spec, point, k, &r);
    alarm(0);
    nothing_is_left(ctx, &before);
    lt_ctx_destroy(ctx);
    w->runs++;
    return r;
}

/* --- the sweep ---------------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool named(const char *words, const char *text)
{
    char list[120], *save = NULL;
    snprintf(list, sizeof list, "%s", words ? words : "");
    for (const char *word = strtok_r(list, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (strstr(text, word))
            return true;
    return !words && strlen(text) > 8;
}

static void check_answer(const result *r, const result *right)
{
    if (r->status != right->status)
        fail_msg("%s: %s, '%s'", running, lt_status_name(r->status), r->err.text);
    if (r->n != right->n || r->hash != right->hash)
        fail_msg("%s: OTHER BITS", running);
}

static void check(sweep *w, const call *c, const result *r, const result *right, bool met)
{
    if (r->status == right->status || !met)
        check_answer(r, right);
    if (!met || (r->status == right->status && !r->went_on)) {
        w->absorbed += met;
        return;
    }
    lt_status s = r->err.status;
    if (s == LT_OK || (s != c->status[0] && s != c->status[1]))
        fail_msg("%s: %s, '%s'", running, lt_status_name(s), r->err.text);
    if (!named(c->words, r->err.text))
        fail_msg("%s: the sentence has none of %s: '%s'", running, c->words ? c->words : "it", r->err.text);
    w->reported++;
}

/* How many of calls an undisturbed run makes; 0 where it is of a kind that the device lacks. */
static uint64_t count_calls(sweep *w, size_t point, kind k, result *right)
{
    *right = run(w, point, NEVER, k);
    if (k == MAPPED && right->err.status == LT_E_UNSUPPORTED) {
        print_message("%s: %s\n", running, right->err.text);
        return 0;
    }
    if (w->blank)
        return NEVER - right->left;
    if (right->err.status != LT_OK)
        fail_msg("%s, undisturbed: %s", running, right->err.text);
    assert_true((right->plan.streamed_bytes > 0) == (k == STREAMED || k == CHANGED || k == MAPPED));
    assert_true((right->mapped > 0) == (k == MAPPED));
    return NEVER - right->left;
}

static uint64_t next_of(uint64_t n, uint64_t count, uint64_t most)
{
    uint64_t dense = most / 2, step = count > most && n >= dense ? (count - dense + dense - 1) / dense : 1;
    return n < count && n + step > count ? count : n + step;
}

static void sweep_call(sweep *w, size_t point, uint64_t hash, uint64_t most)
{
    const call *c = &w->calls[point];
    int met_before = w->met;
    char line[200] = "";
    int used = 0, absorbed = w->absorbed, reported = w->reported;
    for (kind k = 0; k < KINDS; k++) {
        result right;
        uint64_t count = c->kinds >> k & 1 ? count_calls(w, point, k, &right) : 0;
        int met_here = w->met;
        if (!count)
            continue;
        if (right.hash != hash)
            fail_msg("%s, undisturbed: OTHER BITS", running);
        for (uint64_t n = 1; n <= count + 1; n = next_of(n, count, most)) {
            result r = run(w, point, n, k);
            bool met = r.opened ? r.left == 0 : r.status != LT_OK;
            check(w, c, &r, &right, met);
            w->met += met;
        }
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%s %d of %lu", used ? ", " : "", kind_names[k], w->met - met_here, count);
    }
    print_message("fail=%-9s %s; %d absorbed, %d reported\n", c->name, used ? line : "never met", w->absorbed - absorbed, w->reported - reported);
    if (w->met == met_before)
        fail_msg("no run called %s", c->name);
}

static bool is_wanted(const sweep *w, size_t point)
{
    return w->calls[point].name && w->calls[point].kinds && w->only >> point & 1;
}

static uint64_t open_keeper(sweep *w)
{
    lt_err err = {0};
    assert_int_equal(lt_ctx_create(NULL, &w->keep_ctx, NULL), LT_OK);
    if (lt_device_open(w->keep_ctx, w->spec, &w->keep, &err) != LT_OK)
        fail_msg("%s: %s", w->spec, err.text);
    return lt_device_free_bytes(w->keep);
}

static void close_keeper(sweep *w)
{
    lt_device_close(w->keep);
    assert_int_equal(lt_ctx_host_bytes(w->keep_ctx), 0);
    lt_ctx_destroy(w->keep_ctx);
}

static bool has_managed(const sweep *w)
{
    lt_ctx *ctx;
    lt_device *dev = NULL;
    lt_err err = {0};
    char spec[480];
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    snprintf(spec, sizeof spec, "%s%cmanaged=1", w->spec, strchr(w->spec, ':') ? ',' : ':');
    lt_status s = lt_device_open(ctx, spec, &dev, &err);
    if (s != LT_OK)
        print_message("fail=managed not here: %s\n", err.text);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return s == LT_OK;
}

/* What is free, once it is `wanted` or two seconds later: managed memory was seen to come back to the card late. */
static uint64_t free_in_time(const sweep *w, uint64_t wanted)
{
    uint64_t now = lt_device_free_bytes(w->keep);
    for (int i = 0; i < 200 && now < wanted; i++, now = lt_device_free_bytes(w->keep))
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return now;
}

/* In a new context: bytes less free than in the first, 0 within the slack. */
static uint64_t free_again(sweep *w, uint64_t at_first, uint64_t slack)
{
    close_keeper(w);
    (void)open_keeper(w);
    uint64_t now = free_in_time(w, at_first - slack);
    return now + slack < at_first ? at_first - now : 0;
}

static void sweep_all(sweep *w)
{
    signal(SIGALRM, too_long);
    const uint64_t slack = 8 * MIB; /* what a driver takes later without saying */
    uint64_t at_first = open_keeper(w), hash = 0, most = MOST, pairs = 0;
    size_t first = 0;
    while (!is_wanted(w, first))
        first++;
    hash = run(w, first, NEVER, RESIDENT).hash;
    double t0 = seconds();
    for (kind k = 0; k < KINDS; k++)
        (void)run(w, first, NEVER, k);
    for (size_t i = 0; i < w->n_calls; i++)
        pairs += is_wanted(w, i) ? (uint64_t)__builtin_popcount(w->calls[i].kinds) : 0;
    double runs = w->seconds / ((seconds() - t0) / KINDS) / (double)pairs - 2; /* beside one undisturbed and one that is not met */
    most = runs < LEAST ? LEAST : runs > MOST ? MOST : (uint64_t)runs;
    uint64_t free_before = lt_device_free_bytes(w->keep);
    for (size_t i = 0; i < w->n_calls; i++) {
        bool managed = w->cuda && i == LT_CUDA_FAULT_managed;
        if (!is_wanted(w, i) || (managed && !has_managed(w)))
            continue;
        if (managed) { /* what context and process keep for managed memory, once there was any, is no leak */
            uint64_t lost = free_again(w, at_first, slack), kept;
            if (lost)
                fail_msg("%s: %lu bytes of the device are not free again", w->spec, lost);
            (void)run(w, i, NEVER, STREAMED);
            if ((kept = free_again(w, at_first, slack)))
                print_message("managed memory, once used, keeps %lu bytes of the device\n", kept);
            at_first -= kept;
            (void)run(w, i, NEVER, STREAMED);
            free_before = free_in_time(w, free_before - slack);
        }
        sweep_call(w, i, hash, most);
        uint64_t now = free_in_time(w, free_before - slack);
        if (now + slack < free_before)
            fail_msg("after fail=%s %lu bytes of the device are not free again", w->calls[i].name, free_before - now);
    }
    uint64_t lost = free_again(w, at_first, slack);
    if (lost)
        fail_msg("%s: after all, with a new context, %lu bytes of the device are not free again", w->spec, lost);
    close_keeper(w);
    print_message("%s: %d faults met in %d runs: %d absorbed, %d reported\n", w->spec, w->met, w->runs, w->absorbed, w->reported);
}

/* --- host calls, which sessions do not make ------------------------------------------------------------ */

static lt_status rest(void *user, lt_err *err)
{
    (void)user, (void)err;
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return LT_OK;
}

/* A host call, and pageable memory in and out behind it, which are host calls too. */
static lt_status copies_behind_a_call(lt_device *dev, const uint8_t *in, uint8_t *out, size_t bytes, lt_err *err)
{
    lt_queue *q = NULL;
    lt_addr at = 0;
    lt_status s = lt_device_reserve(dev, 2 * MIB, &at, err);
    if (s == LT_OK)
        s = lt_device_commit(dev, at, 2 * MIB, err);
    if (s == LT_OK)
        s = lt_queue_create(dev, LT_QUEUE_COPY, &q, err);
    if (s == LT_OK)
        s = lt_queue_call(q, rest, NULL, err);
    if (s == LT_OK)
        s = lt_queue_copy_in(q, at, in, bytes, err);
    if (s == LT_OK)
        s = lt_queue_copy_out(q, out, at, bytes, err);
    if (s == LT_OK)
        s = lt_queue_sync(q, err);
    lt_queue_destroy(q);
    lt_device_unreserve(dev, at, 2 * MIB);
    return s;
}

static void host_calls_of(const char *spec)
{
    enum { BYTES = 300 << 10 };
    const call *c = &cuda_calls[LT_CUDA_FAULT_call];
    sweep w = {.spec = spec, .cuda = true, .calls = cuda_calls};
    uint8_t *in = malloc(BYTES), *out = malloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        in[i] = (uint8_t)(i * 31 >> 3);
    int met = 0;
    for (bool more = true; more;) {
        lt_ctx_desc d = lt_ctx_desc_default();
        lt_ctx *ctx;
        lt_device *dev;
        lt_err err = {0};
        char failing[480];
        fake_cuda_counts before = fake_counts();
        d.log = listen;
        *complaint = 0;
        memset(out, 0, BYTES);
        spec_of(failing, &w, c, (uint64_t)met + 1);
        snprintf(running, sizeof running, "%.390s", failing);
        assert_int_equal(lt_ctx_create(&d, &ctx, NULL), LT_OK);
        if (lt_device_open(ctx, failing, &dev, &err) != LT_OK)
            fail_msg("%s: %s", failing, err.text);
        alarm(60);
        lt_status s = copies_behind_a_call(dev, in, out, BYTES, &err);
        alarm(0);
        more = left_of(&w, dev, LT_CUDA_FAULT_call) == 0;
        lt_device_close(dev);
        nothing_is_left(ctx, &before);
        lt_ctx_destroy(ctx);
        if (!more && s == LT_OK)
            assert_memory_equal(in, out, BYTES);
        else if (s != LT_E_DEVICE_LOST || !more || !named(c->words, err.text))
            fail_msg("%s: %s, '%s'", failing, lt_status_name(s), err.text);
        met += more;
    }
    print_message("fail=call      %d in a host call and copies of pageable memory behind it, all reported\n", met);
    assert_true(met >= 2);
    free(in);
    free(out);
}

/* --- where -------------------------------------------------------------------------------------------- */

#define BIT(name) (1u << LT_CUDA_FAULT_##name)

static void sweep_on(const char *spec, const char *model, bool computed, bool blank, unsigned only)
{
    char path[64];
    bool cuda = strncmp(spec, "cuda", 4) == 0;
    sweep w = {.spec = spec, .seconds = fake ? 15 : 45, .cuda = cuda, .computed = computed, .blank = blank, .calls = cuda ? cuda_calls : sim_calls,
               .n_calls = cuda ? (size_t)LT_CUDA_FAULT_COUNT : (size_t)LT_FAULT_COUNT, .only = only};
    w.model = make_model(path, model);
    sweep_all(&w);
    unlink(path);
}

static const char *card_of_test(void)
{
    const char *card = getenv("LT_TEST_CARD");
    return card && (!strncmp(card, "cuda", 4) || !strncmp(card, "sim", 3)) ? card : NULL;
}

static void a_card_whose_calls_fail(void **state)
{
    (void)state;
    const char *card = card_of_test();
    if (!card)
        skip();
    unsigned plain = BIT(reserve) | BIT(create) | BIT(map) | BIT(access) | BIT(alloc);
    sweep_on(card, *card == 'c' ? LARGE : TINY_LLAMA, false, false, ~(strstr(card, "managed=1") ? plain : 0));
}

static void a_card_whose_host_calls_fail(void **state)
{
    (void)state;
    const char *card = card_of_test();
    if (!card || *card != 'c')
        skip();
    host_calls_of(card);
}

static void a_sim_whose_calls_fail(void **state)
{
    (void)state;
    if (getenv("LT_TEST_CARD"))
        skip();
    sweep_on("sim:vram=1G,threads=2", TINY_LLAMA, false, false, ~0u);
}

static void use_fake(void)
{
    void *library = dlopen(LT_CUDA_FAKE_FILE, RTLD_NOW | RTLD_LOCAL), *p = library ? dlsym(library, "fake_cuda") : NULL;
    fake_cuda_control_fn *get;
    if (!p)
        fail_msg("no fake driver: %s", dlerror());
    memcpy(&get, &p, sizeof get);
    fake = get();
    fake->reset();
    fake->set_attribute(LT_CU_ATTR_CC_MAJOR, 9);
    lt_err err = {0};
    if (lt_ctx_create(NULL, &host.ctx, &err) != LT_OK || lt_device_open(host.ctx, "cpu:threads=1", &host.dev, &err) != LT_OK ||
        lt_queue_create(host.dev, LT_QUEUE_COMPUTE, &host.q, &err) != LT_OK)
        fail_msg("%s", err.text);
}

static void leave_fake(void)
{
    lt_queue_destroy(host.q);
    lt_device_close(host.dev);
    lt_ctx_destroy(host.ctx);
    fake = NULL;
}

/* Without kernels nothing loads, and there are no graphs. */
static void a_driver_of_host_memory_whose_calls_fail(void **state)
{
    (void)state;
    if (getenv("LT_TEST_CARD"))
        skip();
    use_fake();
    sweep_on("cuda:kernels=0," LT_CUDA_FAKE, SMALL, true, false, ~(BIT(load) | BIT(graph)));
    host_calls_of("cuda:kernels=0," LT_CUDA_FAKE);
    if (lt__cuda_images[0].family)
        sweep_on("cuda:" LT_CUDA_FAKE, SMALL, false, true, BIT(load) | BIT(graph) | BIT(launch));
    leave_fake();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_whose_calls_fail),
        cmocka_unit_test(a_card_whose_host_calls_fail),
        cmocka_unit_test(a_sim_whose_calls_fail),
        cmocka_unit_test(a_driver_of_host_memory_whose_calls_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
