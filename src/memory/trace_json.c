/* Traces as Chrome and Perfetto read them: an array of events, times in microseconds. */
#include "memory/trace_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const lane_names[LT__LANE_COUNT] = {
#define LT_X(name, text) text,
    LT__LANE_LIST(LT_X)
#undef LT_X
};

size_t lt__trace_json_head(char *out, size_t bytes)
{
    size_t n = (size_t)snprintf(out, bytes, "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"lowtide\"}}");
    for (int i = 0; i < LT__LANE_COUNT; i++)
        n += (size_t)snprintf(out + n, bytes - n,
                              ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
                              ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
                              i + 1, lane_names[i], i + 1, i + 1);
    return n;
}

/* Names were escaped when they were numbered. */
static size_t span(lt__trace_json *j, const lt__trace_event *e, const char *what, const char *which, char *out, size_t bytes)
{
    double at = (double)e->time_ns * 1e-3, lasts = (double)e->aux * 1e-3;
    if (e->queue != LT__LANE_DISK)
        return (size_t)snprintf(out, bytes,
                                ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":1,\"tid\":%u,\"args\":{\"of\":\"%s\",\"bytes\":%" PRIu64 "}}",
                                what, at, lasts, e->queue + 1, which, e->bytes);
    /* Reads overlap: each is a row of its own. */
    uint64_t id = ++j->reads;
    return (size_t)snprintf(out, bytes,
                            ",\n{\"name\":\"%s\",\"cat\":\"disk\",\"ph\":\"b\",\"id\":%" PRIu64 ",\"ts\":%.3f,\"pid\":1,\"tid\":%u,\"args\":{\"of\":\"%s\",\"bytes\":%" PRIu64 "}}"
                            ",\n{\"name\":\"%s\",\"cat\":\"disk\",\"ph\":\"e\",\"id\":%" PRIu64 ",\"ts\":%.3f,\"pid\":1,\"tid\":%u}",
                            what, id, at, e->queue + 1, which, e->bytes, what, id, at + lasts, e->queue + 1);
}

static size_t uses(const lt__trace_json *j, double at, char *out, size_t bytes)
{
    size_t n = (size_t)snprintf(out, bytes, ",\n{\"name\":\"arena by use\",\"ph\":\"C\",\"ts\":%.3f,\"pid\":1,\"args\":{", at);
    for (int u = 0; u < LT_USE_COUNT; u++)
        n += (size_t)snprintf(out + n, bytes - n, "%s\"%s\":%" PRIu64, u ? "," : "", lt_use_name((lt_use)u), j->live[u]);
    return n + (size_t)snprintf(out + n, bytes - n, "}}");
}

static size_t counter(const char *name, double at, uint64_t value, char *out, size_t bytes)
{
    return (size_t)snprintf(out, bytes, ",\n{\"name\":\"%s\",\"ph\":\"C\",\"ts\":%.3f,\"pid\":1,\"args\":{\"bytes\":%" PRIu64 "}}", name, at, value);
}

size_t lt__trace_json_event(lt__trace_json *j, const lt__trace_event *e, const char *what, const char *which, char *out, size_t bytes)
{
    double at = (double)e->time_ns * 1e-3;
    uint32_t use = e->aux & 0xff;
    size_t n;
    switch (e->action) {
    case LT__TRACE_SPAN:
        return span(j, e, what, which, out, bytes);
    case LT__TRACE_ALLOC:
    case LT__TRACE_FREE:
        if (use >= LT_USE_COUNT) return 0;
        j->live[use] += e->action == LT__TRACE_ALLOC ? e->bytes : -e->bytes;
        return uses(j, at, out, bytes);
    case LT__TRACE_COMMIT:
    case LT__TRACE_DECOMMIT:
        j->committed += e->action == LT__TRACE_COMMIT ? e->bytes : -e->bytes;
        return counter("committed", at, j->committed, out, bytes);
    case LT__TRACE_STALL:
        return (size_t)snprintf(out, bytes, ",\n{\"name\":\"stall\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":1,\"tid\":%d,\"args\":{\"item\":%" PRIu64 "}}",
                                at - (double)e->aux * 1e-3, (double)e->aux * 1e-3, LT__LANE_WAIT + 1, e->object);
    case LT__TRACE_EVICT:
        return (size_t)snprintf(out, bytes, ",\n{\"name\":\"evict\",\"ph\":\"i\",\"s\":\"t\",\"ts\":%.3f,\"pid\":1,\"tid\":%d,\"args\":{\"item\":%" PRIu64 ",\"bytes\":%" PRIu64 "}}",
                                at, LT__LANE_EVICT + 1, e->object, e->bytes);
    case LT__TRACE_BUDGET:
        n = (size_t)snprintf(out, bytes, ",\n{\"name\":\"budget\",\"ph\":\"i\",\"s\":\"p\",\"ts\":%.3f,\"pid\":1,\"tid\":%d,\"args\":{\"token\":%" PRIu64 ",\"from\":%" PRIu64 ",\"to\":%" PRIu64 "}}",
                             at, LT__LANE_WAIT + 1, e->object, e->aux, e->bytes);
        return n + counter("budget", at, e->bytes, out + n, bytes - n);
    default:
        return 0; /* leases and plans are for replay */
    }
}
