#include "memory/timeline.h"

#include <string.h>

void lt__track_init(lt__track *t, lt_trace *trace, lt_device *dev)
{
    *t = (lt__track){.dev = dev};
    if (!lt__trace_is_timeline(trace)) return;
    t->mark = lt__alloc_array(lt__trace_ctx(trace), LT__TRACK_MARKS, sizeof *t->mark);
    if (t->mark) t->trace = trace;
}

void lt__track_deinit(lt__track *t)
{
    if (!t->trace) return;
    lt__track_read(t);
    for (uint32_t i = 0; i < LT__TRACK_MARKS; i++) lt_event_destroy(t->mark[i].event);
    lt__free(lt__trace_ctx(t->trace), t->mark, LT__TRACK_MARKS * sizeof *t->mark);
    *t = (lt__track){0};
}

void lt__track_read(lt__track *t)
{
    while (t->trace && t->n && lt_event_done(t->mark[t->first].event)) {
        const lt__mark_entry *m = &t->mark[t->first];
        uint64_t at = lt_event_time_ns(m->event);
        t->first = (t->first + 1) % LT__TRACK_MARKS;
        t->n--;
        if (!at) continue; /* of a queue that failed */
        uint64_t end = (uint64_t)((int64_t)at + t->offset), begin = lt__max_u64(t->last_end, m->given_ns);
        if (begin > end) begin = end; /* two clocks agree to some microseconds only */
        lt__trace_span(t->trace, m->lane, m->object, begin, end, m->bytes);
        t->last_end = end;
    }
}

/* Where device time stands against the host's: once, by an event that has just passed. */
static bool place(lt__track *t, lt_queue *q, lt_event *ev)
{
    if (lt_event_record(ev, q, NULL) != LT_OK || lt_event_sync(ev, NULL) != LT_OK) return false;
    t->offset = (int64_t)lt__now_ns() - (int64_t)lt_event_time_ns(ev);
    t->placed = true;
    return true;
}

void lt__track_write(lt__track *t, lt_queue *q, lt__trace_lane lane, const char *what, const char *which, uint64_t bytes)
{
    if (t->n >= LT__TRACK_MARKS / 2) lt__track_read(t);
    if (t->n == LT__TRACK_MARKS && lt_event_sync(t->mark[t->first].event, NULL) == LT_OK) lt__track_read(t);
    if (t->n == LT__TRACK_MARKS) return;
    lt__mark_entry *m = &t->mark[(t->first + t->n) % LT__TRACK_MARKS];
    if (!m->event && lt_event_create(t->dev, &m->event, NULL) != LT_OK) {
        m->event = NULL;
        return;
    }
    if (!t->placed && !place(t, q, m->event)) return;
    lt_event *ev = m->event;
    if (lt_event_record(ev, q, NULL) != LT_OK) return;
    *m = (lt__mark_entry){ev, lane, (uint64_t)lt__trace_name(t->trace, what) << 32 | lt__trace_name(t->trace, which), bytes, lt__now_ns()};
    t->n++;
}
