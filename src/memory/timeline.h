/* timeline.h - when queued work really ran, for traces that are looked at rather than replayed.
 *
 * Behind each piece of work an event is recorded; when it has passed, a span goes from where the queue was free, or the
 * work was given, to there. On a virtual clock spans have its times. Off (track->trace NULL), a mark costs one pointer test. */
#ifndef LT_MEMORY_TIMELINE_H
#define LT_MEMORY_TIMELINE_H

#include "lowtide/device.h"
#include "memory/trace.h"

enum { LT__TRACK_MARKS = 2048 };

typedef struct lt__mark_entry { lt_event *event; lt__trace_lane lane; uint64_t object, bytes, given_ns; } lt__mark_entry;
typedef struct lt__track {
    lt_trace       *trace; /* NULL: off */
    lt_device      *dev;
    uint64_t        last_end;
    bool            placed;
    int64_t         offset; /* host time less device time */
    lt__mark_entry *mark;   /* a ring; events are made as they are needed and used again */
    uint32_t        first, n;
} lt__track;

/* Stays off without a trace, one that is no timeline, or the memory for it. */
void lt__track_init(lt__track *t, lt_trace *trace, lt_device *dev);
void lt__track_deinit(lt__track *t); /* the queues are idle, and still there */
/* Behind what was just given to q. A mark that cannot be made is left out. */
void lt__track_write(lt__track *t, lt_queue *q, lt__trace_lane lane, const char *what, const char *which, uint64_t bytes);
void lt__track_read(lt__track *t); /* writes the spans of what has passed */
static inline void lt__track_mark(lt__track *t, lt_queue *q, lt__trace_lane lane, const char *what, const char *which, uint64_t bytes)
{
    if (__builtin_expect(t->trace != NULL, 0)) lt__track_write(t, q, lane, what, which, bytes);
}

#endif
