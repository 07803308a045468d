#include "memory/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "memory/trace_json.h"

#define HEADER "lowtide-trace 1\n"
#define COLUMNS "time_ns,thread,queue,action,object,bytes,aux\n"

/* A chunk is 4096 records of 56 bytes. A disk that cannot keep up with 256 of them loses
 * events; close then says so and leaves no file. */
enum { CHUNK_EVENTS = 4096, CHUNKS_MAX = 256, LINE_MAX_BYTES = 160, NAME_BUCKETS = 1 << 17, NAMES_MAX = 1 << 16 };

typedef struct chunk {
    struct chunk *next;
    uint32_t n;
    lt__trace_event events[CHUNK_EVENTS];
} chunk;

struct lt_trace {
    lt_ctx *ctx;
    lt__outfile *out;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t writer;
    chunk *filling, *full, *full_last, *idle;
    uint32_t n_chunks, scopes;
    bool closing;
    uint64_t start_ns, lost;
    const lt_queue **queues;
    size_t n_queues, cap_queues;
    pthread_t *threads;
    size_t n_threads, cap_threads;
    lt_err first_err; /* of the writer */
    bool timeline;
    lt__trace_json json; /* the writer's */
    char (*names)[LT__TRACE_NAME]; /* escaped; their number is the index, 0 is no name */
    uint32_t *buckets; /* of names, NAME_BUCKETS; 0: empty */
    size_t n_names, cap_names;
};

const char *lt__trace_action_name(lt__trace_action a)
{
    static const char *const names[] = {
#define LT_X(name, text) text,
        LT__TRACE_LIST(LT_X)
#undef LT_X
    };
    return (unsigned)a < LT__TRACE_COUNT ? names[a] : "unknown";
}

static lt_status write_chunk(lt__outfile *out, const chunk *c, lt_err *err)
{
    char buf[64 * LINE_MAX_BYTES];
    size_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const lt__trace_event *e = &c->events[i];
        n += (size_t)snprintf(buf + n, sizeof buf - n,
                              "%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                              e->time_ns, e->thread, e->queue, lt__trace_action_name(e->action), e->object,
                              e->bytes, e->aux);
        if (n <= sizeof buf - LINE_MAX_BYTES && i + 1 < c->n) continue;
        lt_status st = lt__outfile_write(out, buf, n, err);
        if (st != LT_OK) return st;
        n = 0;
    }
    return LT_OK;
}

/* Names come under the lock: their array may move meanwhile. */
static void copy_names(lt_trace *t, const lt__trace_event *e, char what[LT__TRACE_NAME], char which[LT__TRACE_NAME])
{
    what[0] = which[0] = 0;
    if (e->action != LT__TRACE_SPAN) return;
    pthread_mutex_lock(&t->lock);
    uint32_t a = (uint32_t)(e->object >> 32), b = (uint32_t)e->object;
    if (a < t->n_names) memcpy(what, t->names[a], LT__TRACE_NAME);
    if (b < t->n_names) memcpy(which, t->names[b], LT__TRACE_NAME);
    pthread_mutex_unlock(&t->lock);
}

static lt_status write_json(lt_trace *t, const chunk *c, lt_err *err)
{
    char buf[32 * LT__TRACE_JSON_MOST], what[LT__TRACE_NAME], which[LT__TRACE_NAME];
    size_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        copy_names(t, &c->events[i], what, which);
        n += lt__trace_json_event(&t->json, &c->events[i], what, which, buf + n, sizeof buf - n);
        if (n == 0 || (n <= sizeof buf - LT__TRACE_JSON_MOST && i + 1 < c->n)) continue;
        lt_status st = lt__outfile_write(t->out, buf, n, err);
        if (st != LT_OK) return st;
        n = 0;
    }
    return LT_OK;
}

static void *run_writer(void *arg)
{
    lt_trace *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->full && !t->closing) pthread_cond_wait(&t->wake, &t->lock);
        chunk *c = t->full;
        if (!c) break;
        t->full = c->next;
        if (!t->full) t->full_last = NULL;
        bool failed = t->first_err.status != LT_OK;
        pthread_mutex_unlock(&t->lock);
        lt_err err = {0};
        if (!failed) (void)!(t->timeline ? write_json(t, c, &err) : write_chunk(t->out, c, &err));
        pthread_mutex_lock(&t->lock);
        if (err.status != LT_OK) t->first_err = err;
        c->n = 0;
        c->next = t->idle;
        t->idle = c;
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void free_chunks(lt_ctx *ctx, chunk *c)
{
    while (c) {
        chunk *next = c->next;
        lt__free(ctx, c, sizeof *c);
        c = next;
    }
}

static void free_trace(lt_trace *t)
{
    lt_ctx *ctx = t->ctx;
    free_chunks(ctx, t->filling);
    free_chunks(ctx, t->full);
    free_chunks(ctx, t->idle);
    lt__free(ctx, t->names, t->cap_names * sizeof *t->names);
    lt__free(ctx, t->buckets, t->timeline ? NAME_BUCKETS * sizeof *t->buckets : 0);
    lt__free(ctx, t->queues, t->cap_queues * sizeof *t->queues);
    lt__free(ctx, t->threads, t->cap_threads * sizeof *t->threads);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    lt__free(ctx, t, sizeof *t);
}

lt_status lt_trace_create(lt_ctx *ctx, const char *path, lt_trace **out, lt_err *err)
{
    *out = NULL;
    lt_trace *t = lt__zalloc(ctx, sizeof *t);
    if (!t) return lt__fail_oom(err, sizeof *t, "a trace");
    t->ctx = ctx;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->start_ns = lt__now_ns();
    lt_status st;
    t->filling = lt__zalloc(ctx, sizeof *t->filling);
    if (!t->filling) {
        st = lt__fail_oom(err, sizeof *t->filling, "a trace's buffer");
        goto fail;
    }
    t->n_chunks = 1;
    size_t len = strlen(path);
    if (len > 5 && strcmp(path + len - 5, ".json") == 0) {
        t->buckets = lt__zalloc(ctx, NAME_BUCKETS * sizeof *t->buckets);
        if (!t->buckets || lt__grow(ctx, (void **)&t->names, &t->cap_names, 1, sizeof *t->names, err) != LT_OK) {
            lt__free(ctx, t->buckets, NAME_BUCKETS * sizeof *t->buckets);
            t->buckets = NULL;
            st = lt__fail_oom(err, NAME_BUCKETS * sizeof *t->buckets, "a timeline's names");
            goto fail;
        }
        t->n_names = 1;
        t->timeline = true;
    }
    st = lt__outfile_open(ctx, path, &t->out, err);
    if (st != LT_OK) goto fail;
    char head[4096];
    st = t->timeline ? lt__outfile_write(t->out, head, lt__trace_json_head(head, sizeof head), err)
                     : lt__outfile_write(t->out, HEADER COLUMNS, sizeof HEADER COLUMNS - 1, err);
    if (st != LT_OK) goto fail_file;
    int e = pthread_create(&t->writer, NULL, run_writer, t);
    if (e) {
        st = lt__fail_native(err, LT_E_HOST_OOM, e, "trace '%s': no thread to write it: %s", path,
                             strerror(e));
        goto fail_file;
    }
    *out = t;
    return LT_OK;

fail_file:
    lt__outfile_abandon(t->out);
fail:
    free_trace(t);
    return st;
}

static void hand_over(lt_trace *t)
{
    chunk *c = t->filling;
    t->filling = NULL;
    if (!c) return;
    if (!c->n) {
        c->next = t->idle;
        t->idle = c;
        return;
    }
    c->next = NULL;
    if (t->full_last)
        t->full_last->next = c;
    else
        t->full = c;
    t->full_last = c;
    pthread_cond_signal(&t->wake);
}

lt_status lt_trace_close(lt_trace *t, lt_err *err)
{
    if (!t) return LT_OK;
    pthread_mutex_lock(&t->lock);
    hand_over(t);
    t->closing = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->writer, NULL);
    lt_status st = t->first_err.status;
    if (st != LT_OK) {
        if (err) *err = t->first_err;
    } else if (t->lost) {
        st = lt__fail(err, LT_E_HOST_OOM,
                      "trace: %llu events were lost for want of buffers, so the file is not kept",
                      (unsigned long long)t->lost);
    }
    if (st == LT_OK && t->timeline) st = lt__outfile_write(t->out, "\n]\n", 3, err);
    if (st == LT_OK)
        st = lt__outfile_commit(t->out, err);
    else
        lt__outfile_abandon(t->out);
    free_trace(t);
    return st;
}

uint32_t lt__trace_scope(lt_trace *t)
{
    if (!t) return 0;
    pthread_mutex_lock(&t->lock);
    uint32_t n = ++t->scopes;
    pthread_mutex_unlock(&t->lock);
    return n;
}

uint32_t lt__trace_queue(lt_trace *t, const lt_queue *queue)
{
    if (!t || !queue) return 0;
    pthread_mutex_lock(&t->lock);
    size_t i = 0;
    while (i < t->n_queues && t->queues[i] != queue) i++;
    if (i == t->n_queues && i < UINT32_MAX - 1 &&
        lt__grow(t->ctx, (void **)&t->queues, &t->cap_queues, i + 1, sizeof *t->queues, NULL) == LT_OK)
        t->queues[t->n_queues++] = queue;
    uint32_t number = i < t->n_queues ? (uint32_t)i + 1 : UINT32_MAX; /* no memory to remember it */
    pthread_mutex_unlock(&t->lock);
    return number;
}

static uint32_t number_thread(lt_trace *t)
{
    pthread_t me = pthread_self();
    size_t i = 0;
    while (i < t->n_threads && !pthread_equal(t->threads[i], me)) i++;
    if (i == t->n_threads && i < UINT32_MAX - 1 &&
        lt__grow(t->ctx, (void **)&t->threads, &t->cap_threads, i + 1, sizeof *t->threads, NULL) == LT_OK)
        t->threads[t->n_threads++] = me;
    return i < t->n_threads ? (uint32_t)i + 1 : UINT32_MAX;
}

bool lt__trace_is_timeline(const lt_trace *t) { return t && t->timeline; }
lt_ctx *lt__trace_ctx(const lt_trace *t) { return t->ctx; }

/* What JSON takes in a string; the rest becomes '?', and what is too long is cut. */
static void escape(const char *name, char out[LT__TRACE_NAME])
{
    size_t n = 0;
    for (; *name && n + 3 < LT__TRACE_NAME; name++) {
        unsigned char c = (unsigned char)*name;
        if (c == '"' || c == '\\') out[n++] = '\\';
        out[n++] = c < 32 || c > 126 ? '?' : (char)c;
    }
    out[n] = 0;
}

uint32_t lt__trace_name(lt_trace *t, const char *name)
{
    char text[LT__TRACE_NAME];
    uint64_t h = UINT64_C(14695981039346656037);
    if (!name || !t->timeline) return 0;
    escape(name, text);
    for (const char *c = text; *c; c++) h = (h ^ (unsigned char)*c) * UINT64_C(1099511628211);
    pthread_mutex_lock(&t->lock);
    size_t at = (h ^ h >> 32) % NAME_BUCKETS;
    while (t->buckets[at] && strcmp(t->names[t->buckets[at]], text) != 0) at = (at + 1) % NAME_BUCKETS;
    uint32_t number = t->buckets[at];
    if (!number && t->n_names < NAMES_MAX &&
        lt__grow(t->ctx, (void **)&t->names, &t->cap_names, t->n_names + 1, sizeof *t->names, NULL) == LT_OK) {
        number = t->buckets[at] = (uint32_t)t->n_names;
        memcpy(t->names[t->n_names++], text, sizeof text);
    }
    pthread_mutex_unlock(&t->lock);
    return number;
}

static void write_at(lt_trace *t, uint64_t at, uint32_t queue, lt__trace_action action, uint64_t object, uint64_t bytes, uint64_t aux);

void lt__trace_span(lt_trace *t, lt__trace_lane lane, uint64_t object, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes)
{
    if (lt__trace_is_timeline(t)) write_at(t, begin_ns, lane, LT__TRACE_SPAN, object, bytes, end_ns - begin_ns);
}

void lt__trace_write(lt_trace *t, uint32_t queue, lt__trace_action action, uint64_t object, uint64_t bytes,
                     uint64_t aux)
{
    write_at(t, 0, queue, action, object, bytes, aux);
}

/* at 0: now, as the lock is held: times of a thread never go back. */
static void write_at(lt_trace *t, uint64_t at, uint32_t queue, lt__trace_action action, uint64_t object, uint64_t bytes,
                     uint64_t aux)
{
    pthread_mutex_lock(&t->lock);
    at = at ? at : lt__now_ns();
    chunk *c = t->filling;
    if (!c) {
        c = t->idle;
        if (c) {
            t->idle = c->next;
        } else if (t->n_chunks < CHUNKS_MAX && (c = lt__zalloc(t->ctx, sizeof *c)) != NULL) {
            t->n_chunks++;
        } else {
            t->lost++;
            pthread_mutex_unlock(&t->lock);
            return;
        }
        c->next = NULL;
        t->filling = c;
    }
    c->events[c->n++] = (lt__trace_event){.time_ns = at > t->start_ns ? at - t->start_ns : 0,
                                          .thread = number_thread(t),
                                          .queue = queue,
                                          .action = action,
                                          .object = object,
                                          .bytes = bytes,
                                          .aux = aux};
    if (c->n == CHUNK_EVENTS) hand_over(t);
    pthread_mutex_unlock(&t->lock);
}

typedef struct cursor {
    const char *at, *end;
} cursor;

/* Digits up to `stop`, which is swallowed; no sign, no space, no leading zero. */
static bool take_u64(cursor *c, char stop, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;
    const char *start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        if (!lt__mul_u64(v, 10, &v) || !lt__add_u64(v, (uint64_t)(*c->at - '0'), &v)) return false;
    }
    if (c->at == start || (*start == '0' && c->at - start > 1) || v > max || c->at == c->end ||
        *c->at != stop)
        return false;
    c->at++;
    *out = v;
    return true;
}

static bool take_action(cursor *c, lt__trace_action *out)
{
    const char *comma = memchr(c->at, ',', (size_t)(c->end - c->at));
    if (!comma) return false;
    size_t n = (size_t)(comma - c->at);
    for (int a = 0; a < LT__TRACE_COUNT; a++) {
        const char *name = lt__trace_action_name((lt__trace_action)a);
        if (strlen(name) != n || memcmp(name, c->at, n) != 0) continue;
        *out = (lt__trace_action)a;
        c->at = comma + 1;
        return true;
    }
    return false;
}

static bool take_line(cursor *c, lt__trace_event *e, const char **what)
{
    uint64_t thread, queue;
    *what = "time_ns";
    if (!take_u64(c, ',', UINT64_MAX, &e->time_ns)) return false;
    *what = "thread";
    if (!take_u64(c, ',', UINT32_MAX, &thread)) return false;
    *what = "queue";
    if (!take_u64(c, ',', UINT32_MAX, &queue)) return false;
    *what = "action";
    if (!take_action(c, &e->action)) return false;
    *what = "object";
    if (!take_u64(c, ',', UINT64_MAX, &e->object)) return false;
    *what = "bytes";
    if (!take_u64(c, ',', UINT64_MAX, &e->bytes)) return false;
    *what = "aux";
    if (!take_u64(c, '\n', UINT64_MAX, &e->aux)) return false;
    e->thread = (uint32_t)thread;
    e->queue = (uint32_t)queue;
    return true;
}

lt_status lt__trace_parse(const char *name, const char *text, size_t bytes, lt__trace_event_fn *fn,
                          void *user, lt_err *err)
{
    const size_t head = sizeof HEADER - 1, columns = sizeof COLUMNS - 1;
    if (bytes < head || memcmp(text, HEADER, head) != 0)
        return lt__fail(err, LT_E_FORMAT, "%s: not a trace: the first line is not 'lowtide-trace 1'", name);
    if (bytes < head + columns || memcmp(text + head, COLUMNS, columns) != 0)
        return lt__fail(err, LT_E_FORMAT, "%s: line 2 is not 'time_ns,thread,queue,action,object,bytes,aux'",
                        name);
    cursor c = {text + head + columns, text + bytes};
    for (uint64_t line = 3; c.at < c.end; line++) {
        lt__trace_event e = {0};
        const char *what, *start = c.at;
        if (!take_line(&c, &e, &what)) {
            int n = 0;
            char seen[48];
            for (const char *s = start; s < c.end && *s != '\n' && n < (int)sizeof seen - 1; s++)
                seen[n++] = *s >= 32 && *s < 127 ? *s : '?';
            seen[n] = 0;
            return lt__fail(err, LT_E_FORMAT, "%s: line %llu: bad %s in '%s'", name, (unsigned long long)line,
                            what, seen);
        }
        lt_status st = fn(user, &e, err);
        if (st != LT_OK) return st;
    }
    return LT_OK;
}

lt_status lt__trace_read(lt_ctx *ctx, const char *path, lt__trace_event_fn *fn, void *user, lt_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return lt__fail_errno(err, errno, "trace '%s' cannot be opened", path);
    lt_status st = LT_OK;
    char *text = NULL;
    size_t size = 0, have = 0;
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        st = lt__fail_errno(err, errno, "trace '%s' cannot be looked at", path);
        goto done;
    }
    if (!S_ISREG(sb.st_mode) || sb.st_size <= 0 || (uint64_t)sb.st_size > LT__TRACE_FILE_MAX) {
        st = lt__fail(err, LT_E_FORMAT, "trace '%s' is no file of 1 byte to 4 GiB", path);
        goto done;
    }
    size = (size_t)sb.st_size;
    text = lt__alloc(ctx, size);
    if (!text) {
        st = lt__fail_oom(err, size, "a trace's text");
        goto done;
    }
    while (have < size) {
        ssize_t n = lt__fault(ctx, LT_FAULT_READ) ? (errno = EIO, -1) : read(fd, text + have, size - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            st = n < 0 ? lt__fail_errno(err, errno, "trace '%s' cannot be read", path)
                       : lt__fail(err, LT_E_IO, "trace '%s' became shorter while it was read", path);
            goto done;
        }
        have += (size_t)n;
    }
    st = lt__trace_parse(path, text, size, fn, user, err);
done:
    lt__free(ctx, text, size);
    close(fd);
    return st;
}
