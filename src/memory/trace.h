/* trace.h - recording memory events, and reading them back.
 *
 * Whoever records holds an lt_trace or NULL; off, an event costs one pointer test. A record
 * goes into a buffer under the trace's own lock (last in lock order: residency, pool, device,
 * trace); a thread of the trace writes full buffers, so no caller does I/O.
 *
 * What the columns mean, by action (object is a decimal number, unique among the live ones
 * of its scope; scope is lt__trace_scope of the pool or manager that records):
 *
 *   alloc               object: the block; bytes: usable size; aux: lt__trace_aux(scope, use, align)
 *   free                object: the block; bytes: the same;     aux: lt__trace_aux(scope, use, 0)
 *   commit decommit     object: offset in the pool's range; bytes; aux: lt__trace_aux(scope, 0, 0)
 *   add remove          object: the item's index; bytes: of the item; aux: add carries the priority (int32 as uint32)
 *   lease release       object: the item's index; bytes: of the item; aux: lease carries lt_lease_kind
 *   load evict stream prefetch   object: the item's index; bytes: moved; aux: free
 *   stall               object: the item waited for, bytes: 0, aux: nanoseconds the host waited
 *   step                object: step number; bytes, aux: free
 *   budget              object: length of the sequence; bytes: the budget from here on; aux: the one before
 *   span                timelines only; queue: the lane; object: two names; aux: nanoseconds from time_ns on
 *   plan                object: position in the plan's order; bytes: number of entries; aux: the item's index
 */
#ifndef LT_MEMORY_TRACE_H
#define LT_MEMORY_TRACE_H

#include "base/mem.h"
#include "lowtide/trace.h"

#define LT__TRACE_LIST(X) \
    X(ALLOC, "alloc") X(FREE, "free") X(COMMIT, "commit") X(DECOMMIT, "decommit") \
    X(ADD, "add") X(REMOVE, "remove") X(LEASE, "lease") X(RELEASE, "release") X(LOAD, "load") \
    X(EVICT, "evict") X(STREAM, "stream") X(PREFETCH, "prefetch") X(STALL, "stall") \
    X(STEP, "step") X(PLAN, "plan") X(BUDGET, "budget") X(SPAN, "span")
typedef enum lt__trace_action {
#define LT_X(name, text) LT__TRACE_##name,
    LT__TRACE_LIST(LT_X)
#undef LT_X
    LT__TRACE_COUNT
} lt__trace_action;

/* A trace whose file ends in .json is a timeline: queues, copies, waits, memory by use, as chrome://tracing and Perfetto
 * read them. It cannot be replayed. Rows of it: */
#define LT__LANE_LIST(X) \
    X(COMPUTE, "compute queue") X(IN, "copies in") X(OUT, "copies out") X(DISK, "disk") X(WAIT, "host waits for copies") \
    X(EVICT, "evictions")
typedef enum lt__trace_lane {
#define LT_X(name, text) LT__LANE_##name,
    LT__LANE_LIST(LT_X)
#undef LT_X
    LT__LANE_COUNT
} lt__trace_lane;
#define LT__TRACE_NAME 96

bool lt__trace_is_timeline(const lt_trace *t); /* false for NULL */
lt_ctx *lt__trace_ctx(const lt_trace *t);
/* A number for a name, the same for the same one; 0 where there is no room for another. */
uint32_t lt__trace_name(lt_trace *t, const char *name);
/* Times of lt__now_ns. object: two numbers of names, what << 32 | of which. */
void lt__trace_span(lt_trace *t, lt__trace_lane lane, uint64_t object, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes);

const char *lt__trace_action_name(lt__trace_action a);

/* Numbers from 1 for each pool or manager that records into t; 0 for t == NULL. */
uint32_t lt__trace_scope(lt_trace *t);
/* A small number for a queue, from 1; 0 for the host (NULL). A destroyed queue's number may
 * be met again when a new queue has its address. */
uint32_t lt__trace_queue(lt_trace *t, const lt_queue *queue);

void lt__trace_write(lt_trace *t, uint32_t queue, lt__trace_action action, uint64_t object, uint64_t bytes, uint64_t aux);
static inline void lt__trace_record(lt_trace *t, uint32_t queue, lt__trace_action action, uint64_t object,
                                    uint64_t bytes, uint64_t aux)
{
    if (__builtin_expect(t != NULL, 0)) lt__trace_write(t, queue, action, object, bytes, aux);
}

static inline uint64_t lt__trace_aux(uint32_t scope, uint32_t use, uint64_t align)
{
    return (uint64_t)scope << 16 | (uint64_t)(align ? __builtin_ctzll(align) : 0) << 8 | (use & 0xff);
}

/* One line of a trace file. */
typedef struct lt__trace_event {
    uint64_t time_ns, object, bytes, aux;
    uint32_t thread, queue;
    lt__trace_action action;
} lt__trace_event;

typedef lt_status lt__trace_event_fn(void *user, const lt__trace_event *e, lt_err *err);
/* Every field is checked before fn sees the event. A line that fails names itself. */
LT_NODISCARD lt_status
lt__trace_parse(const char *name, const char *text, size_t bytes, lt__trace_event_fn *fn, void *user, lt_err *err);
/* Reads the whole file; at most LT__TRACE_FILE_MAX bytes. */
#define LT__TRACE_FILE_MAX (4ull << 30)
LT_NODISCARD lt_status
lt__trace_read(lt_ctx *ctx, const char *path, lt__trace_event_fn *fn, void *user, lt_err *err);

/* lt_trace_replay on text already in memory. */
LT_NODISCARD lt_status
lt__trace_replay_text(lt_ctx *ctx, const char *name, const char *text, size_t bytes, const lt_replay_desc *desc,
                      lt_replay_result *out, lt_err *err);

#endif
