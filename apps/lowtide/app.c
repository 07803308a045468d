/* app.c - see app.h. */
#include "app.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static _Atomic(lt_session *) interrupted_session;
static volatile sig_atomic_t interrupted, may_wait, terminated;

const char *app_bytes(uint64_t bytes, char buf[24])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1024 && u < 4; u++)
        v /= 1024;
    snprintf(buf, 24, u == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

int app_exit(lt_status s)
{
    switch (s) {
    case LT_OK: return 0;
    case LT_E_INVALID: return 2;
    case LT_E_FORMAT:
    case LT_E_NOT_FOUND:
    case LT_E_UNSUPPORTED: return 3;
    case LT_E_NO_FIT:
    case LT_E_DEVICE_OOM:
    case LT_E_HOST_OOM: return 4;
    case LT_E_CANCELED: return 130;
    default: return 5;
    }
}

int app_fail(const app *a)
{
    app_progress_end();
    fprintf(stderr, "lowtide: %s\n", a->err.text);
    return app_exit(a->err.status);
}

static void log_line(void *user, lt_log_level level, const char *area, const char *text)
{
    const opts *o = user;
    if (level > (o->v[OPT_verbose].set ? LT_LOG_DEBUG : LT_LOG_WARN) || (o->v[OPT_quiet].set && level > LT_LOG_ERROR))
        return;
    app_progress_end();
    fprintf(stderr, "lowtide: %s%s: %s\n", level <= LT_LOG_WARN ? "warning: " : "", area, text);
}

static lt_status fail(app *a, lt_status s, const char *fmt, ...) LT_PRINTF(3, 4);
static lt_status fail(app *a, lt_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->err.text, sizeof a->err.text, fmt, ap);
    va_end(ap);
    a->err.status = s;
    return s;
}

lt_status app_open(app *a, const opts *o)
{
    memset(a, 0, sizeof *a);
    a->o = o;
    lt_ctx_desc d = lt_ctx_desc_default();
    d.log = log_line;
    d.log_user = (void *)(uintptr_t)o;
    lt_status s = lt_ctx_create(&d, &a->ctx, &a->err);
    for (size_t i = 0; s == LT_OK && i < 3; i++)
        s = app_check_output(a, ((opt_id[]){OPT_report, OPT_logits, OPT_trace})[i]);
    if (s != LT_OK) {
        lt_ctx_destroy(a->ctx);
        a->ctx = NULL;
    }
    return s;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static lt_share_desc share_desc(const opts *o)
{
    lt_share_desc d = lt_share_desc_default();
    d.label = file_name(o->arg);
    d.floor_bytes = o->v[OPT_floor].u;
    if (o->v[OPT_wait].set)
        d.wait_ns = (uint64_t)(o->v[OPT_wait].f * 1e9) + 1;
    return d;
}

lt_status app_open_device(app *a)
{
    const opt_value *v = a->o->v;
    char spec[512];
    const char *given = v[OPT_device].set ? v[OPT_device].s : "cpu", *mode = v[OPT_memory].set ? v[OPT_memory].s : NULL;
    bool managed = mode && strcmp(mode, "managed") == 0, cuda = strncmp(given, "cuda", 4) == 0 && (!given[4] || given[4] == ':');
    if (mode && !managed && strcmp(mode, "device") != 0)
        return fail(a, LT_E_INVALID, "--memory %s: expected device or managed", mode);
    if (managed && !cuda)
        return fail(a, LT_E_INVALID, "--memory managed: the memory of device '%.*s' is the host's already; only cuda has managed memory",
                    (int)strcspn(given, ":"), given);
    int n = snprintf(spec, sizeof spec, "%s", given);
    if (v[OPT_threads].set)
        n = snprintf(spec, sizeof spec, "%s%sthreads=%lu", given, strchr(given, ':') ? "," : ":", v[OPT_threads].u);
    if (v[OPT_lock].set && n > 0 && (size_t)n < sizeof spec)
        n += snprintf(spec + n, sizeof spec - (size_t)n, "%slock=1", strchr(spec, ':') ? "," : ":");
    if (mode && cuda && n > 0 && (size_t)n < sizeof spec) /* the last word counts: also against a spec that says otherwise */
        n += snprintf(spec + n, sizeof spec - (size_t)n, "%smanaged=%d", strchr(spec, ':') ? "," : ":", managed);
    if (n < 0 || (size_t)n >= sizeof spec)
        return fail(a, LT_E_INVALID, "--device: %zu characters are too long", strlen(given));
    bool shares = a->o->arg && a->o->cmd != CMD_INDEX_PLAN; /* the others load nothing */
    lt_share_desc sd = shares ? share_desc(a->o) : lt_share_desc_default();
    lt_status s = shares ? lt_share_open_device(a->ctx, spec, &sd, &a->dev, &a->err) : lt_device_open(a->ctx, spec, &a->dev, &a->err);
    if (s != LT_OK)
        return s;
    lt_device_info info;
    lt_device_get_info(a->dev, &info);
    if (info.host_visible && v[OPT_vram].set)
        return fail(a, LT_E_INVALID, "--vram: device '%s' computes in RAM; its budget is --ram", info.kind);
    if (info.host_visible && v[OPT_reserve].set)
        return fail(a, LT_E_INVALID, "--reserve-vram: device '%s' computes in RAM; its budget is --ram", info.kind);
    return LT_OK;
}

lt_status app_open_model(app *a) { return lt_model_open(a->ctx, a->o->arg, &a->model, &a->err); }

lt_status app_open_tokenizer(app *a)
{
    return lt_tokenizer_create(a->ctx, lt_model_get_file(a->model), &a->tok, &a->err);
}

static uint32_t clamp_u32(uint64_t x) { return x > UINT32_MAX ? UINT32_MAX : (uint32_t)x; }

static lt_status join_share(app *a)
{
    lt_share_desc d = share_desc(a->o);
    return lt_share_join(a->ctx, a->dev, &d, &a->share, &a->err);
}

lt_status app_make_plan(app *a, uint32_t rows, uint64_t prompt, uint64_t answer)
{
    const opt_value *v = a->o->v;
    lt_device_info info;
    lt_device_get_info(a->dev, &info);
    lt_plan_desc d = lt_plan_desc_default();
    d.budget_bytes = info.host_visible ? v[OPT_ram].u : v[OPT_vram].u;
    if (info.host_visible && !v[OPT_ram].set)
        d.reserve_bytes = info.free_bytes / 4;
    else if (!info.host_visible && strcmp(info.kind, "sim") != 0 && !v[OPT_vram].set)
        d.reserve_bytes = UINT64_C(512) << 20; /* a desktop draws on the same card */
    d.reserve_bytes = v[OPT_reserve].set ? v[OPT_reserve].u : d.reserve_bytes;
    a->reserve = info.host_visible ? 0 : d.reserve_bytes;
    d.ram_bytes = v[OPT_ram].u;
    d.ctx = (uint32_t)v[OPT_ctx].u;
    d.batch = (uint32_t)v[OPT_batch].u;
    d.rows = rows;
    d.expect_prompt = clamp_u32(prompt);
    if (prompt) { /* what will be used, not what the model could */
        d.ctx_least = clamp_u32(prompt + (answer && v[OPT_tokens].set ? answer : answer ? 1 : 0));
        d.ctx_most = clamp_u32(prompt + answer);
    }
    if (v[OPT_kv].set && (!lt_dtype_from_name(v[OPT_kv].s, &d.kv_dtype) ||
                          (d.kv_dtype != LT_DTYPE_F16 && d.kv_dtype != LT_DTYPE_Q8_0 && d.kv_dtype != LT_DTYPE_F32)))
        return fail(a, LT_E_INVALID, "--kv %s: expected f16, q8_0 or f32", v[OPT_kv].s);
    static const char *const kinds[LT_ATTENTION_COUNT] = {"flash", "exact", "sage"};
    while (v[OPT_attention].set && strcmp(v[OPT_attention].s, kinds[d.attention]) != 0)
        if (++d.attention == LT_ATTENTION_COUNT)
            return fail(a, LT_E_INVALID, "--attention %s: expected exact, flash or sage", v[OPT_attention].s);
    if (v[OPT_offload].set && strcmp(v[OPT_offload].s, "stream") != 0 && strcmp(v[OPT_offload].s, "mapped") != 0)
        return fail(a, LT_E_INVALID, "--offload %s: expected stream or mapped", v[OPT_offload].s);
    if (v[OPT_offload].set && v[OPT_offload].s[0] == 'm')
        d.offload = LT_OFFLOAD_MAPPED;
    lt_status s = lt_profile_get(a->ctx, a->dev, v[OPT_profile].s, &a->profile, &a->err);
    if (s == LT_OK && a->o->cmd != CMD_INDEX_PLAN)
        s = join_share(a);
    return s == LT_OK ? lt_share_make_plan(a->share, a->model, a->dev, &a->profile, &d, &a->plan, &a->err) : s;
}

lt_status app_start(app *a)
{
    const opt_value *v = a->o->v;
    lt_session_desc d = lt_session_desc_default();
    d.check_finite = v[OPT_check].set;
    d.reserve_bytes = a->reserve;
    d.give_way = a->reserve > 0;
    d.share = a->share;
    d.publish = true;
    d.label = file_name(a->o->arg);
    if (v[OPT_trace].set) {
        lt_status s = lt_trace_create(a->ctx, v[OPT_trace].s, &a->trace, &a->err);
        if (s != LT_OK)
            return s;
        d.trace = a->trace;
    }
    if (!v[OPT_quiet].set && isatty(2))
        d.progress = app_progress;
    lt_status s = lt_session_create(a->model, a->dev, a->plan, &d, &a->session, &a->err);
    app_progress_end();
    return s;
}

lt_status app_close(app *a)
{
    atomic_store(&interrupted_session, NULL);
    may_wait = 1;
    lt_session_destroy(a->session);
    lt_share_leave(a->share);
    lt_status s = a->trace ? lt_trace_close(a->trace, &a->err) : LT_OK;
    lt_plan_destroy(a->plan);
    lt_tokenizer_destroy(a->tok);
    lt_model_close(a->model);
    lt_device_close(a->dev);
    lt_ctx_destroy(a->ctx);
    return s;
}

static lt_status read_all(app *a, FILE *f, const char *name, char **text, size_t *bytes)
{
    size_t cap = 1 << 16, n = 0, got;
    char *buf = malloc(cap);
    while (buf && (got = fread(buf + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap) {
            char *more = cap > (size_t)1 << 32 ? NULL : realloc(buf, cap *= 2);
            if (!more)
                free(buf);
            buf = more;
        }
    }
    if (!buf)
        return fail(a, LT_E_HOST_OOM, "%s: no memory for a text of over %zu bytes", name, n);
    if (ferror(f)) {
        free(buf);
        return fail(a, errno == EISDIR ? LT_E_FORMAT : LT_E_IO, "%s: cannot be read: %s", name, strerror(errno));
    }
    *text = buf;
    *bytes = n;
    return LT_OK;
}

lt_status app_text(app *a, char **text, size_t *bytes)
{
    const opt_value *v = a->o->v;
    *text = NULL;
    if (v[OPT_prompt].set) {
        *bytes = strlen(v[OPT_prompt].s);
        *text = strdup(v[OPT_prompt].s);
        return *text ? LT_OK : fail(a, LT_E_HOST_OOM, "no memory for the prompt");
    }
    if (!v[OPT_file].set)
        return fail(a, LT_E_INVALID, "no text: give --prompt TEXT or --file FILE");
    if (strcmp(v[OPT_file].s, "-") == 0)
        return read_all(a, stdin, "standard input", text, bytes);
    FILE *f = fopen(v[OPT_file].s, "rbe");
    if (!f)
        return fail(a, LT_E_NOT_FOUND, "--file %s: %s", v[OPT_file].s, strerror(errno));
    lt_status s = read_all(a, f, v[OPT_file].s, text, bytes);
    fclose(f);
    return s;
}

lt_status app_ids_text(app *a, char **text, size_t *bytes)
{
    const char *list = a->o->v[OPT_decode].s;
    if (strcmp(list, "-") != 0) {
        *bytes = strlen(list);
        *text = strdup(list);
        return *text ? LT_OK : fail(a, LT_E_HOST_OOM, "no memory for the ids");
    }
    lt_status s = read_all(a, stdin, "standard input", text, bytes);
    if (s == LT_OK)
        (*text)[*bytes] = 0; /* read_all leaves room */
    return s;
}

static void on_interrupt(int sig)
{
    lt_session *s = atomic_load(&interrupted_session);
    if (interrupted || (!s && !may_wait))
        _exit(130); /* nothing is half done that a temporary file would not hide */
    interrupted = 1;
    terminated = sig == SIGTERM;
    if (s)
        lt_session_cancel(s);
}

void app_catch_interrupt(app *a)
{
    struct sigaction act = {.sa_handler = on_interrupt};
    sigemptyset(&act.sa_mask);
    atomic_store(&interrupted_session, a->session);
    may_wait = a->o->cmd == CMD_INDEX_PULL; /* a download looks at app_interrupted() by itself */
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

void app_wait_interrupt(void) { may_wait = 1; }
bool app_interrupted(void) { return interrupted; }
bool app_terminated(void) { return terminated; }
void app_forget_interrupt(void) { interrupted = 0; }

static bool progress_shown;

void app_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    static double last;
    static const char bar[] = "########################################";
    struct timespec t;
    struct winsize w = {0};
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    if (progress_shown && done < total && now - last < 0.1)
        return;
    last = now;
    int columns = ioctl(2, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    int width = columns - (int)strlen(what) - 10;
    width = width > 40 ? 40 : width < 1 ? 1 : width;
    double share = total ? (double)done / (double)total : 1;
    fprintf(stderr, "\r%s [%-*.*s] %3.0f%% ", what, width, (int)(width * share), bar, 100 * share);
    progress_shown = true;
}

void app_progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

json_t *app_string(const char *s)
{
    json_t *j = json_string(s);
    return j ? j : json_string("(not UTF-8)");
}

void app_print_json(json_t *j)
{
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}
