/* hostdev.h - what `cpu` and `sim` share: memory of the host, worker threads, the op table. */
#ifndef LT_CPU_HOSTDEV_H
#define LT_CPU_HOSTDEV_H

#include "backend/backend.h"
#include "backend/cpu/clock.h"
#include "backend/cpu/hostmem.h"
#include "backend/cpu/ops.h"

typedef struct lt_hostqueue lt_hostqueue;
typedef struct lt_hostevent lt_hostevent;
typedef struct lt_mark lt_mark;

typedef struct lt_hostdev {
    lt_device        base; /* first: a lt_device is cast to this */
    char             kind[16];
    lt_cpu_isa       isa;
    uint32_t         threads;
    uint64_t         bias;  /* lt_addr = host pointer + bias */
    bool             apart; /* memory of its own: ranges are checked, addresses are no pointers */
    /* Where apart: host memory that launches may read in place, at host pointer + map_bias. NULL: none. */
    uint64_t         map_bias;
    bool           (*maps)(struct lt_hostdev *d, const void *ptr, uint64_t bytes);
    lt_hostmem       mem;
    lt_hostclock     clock;
    _Atomic uint64_t fail_in[LT_FAULT_COUNT]; /* the how-manieth call fails from now; 0: none */

    pthread_mutex_t  lock; /* the lists below */
    lt_hostqueue    *queues;
    lt_hostevent    *events;
    lt_mark         *free_marks;

    pthread_mutex_t  team_lock; /* held while an op runs: one compute engine */
    lt_team         *team;
    void            *scratch;
    size_t           scratch_bytes;

    _Atomic uint64_t copies, bytes[LT_COPY_DIR_COUNT], launches;
    _Atomic uint64_t copy_busy_ns, compute_busy_ns, compute_stall_ns;
} lt_hostdev;

/* isa must be supported, threads at least 1. */
void lt__hostdev_init(lt_hostdev *d, const lt_device_vt *vt, lt_ctx *ctx, const char *kind, lt_cpu_isa isa,
                      uint32_t threads);
/* Waits for queues still there, warns of them, frees them. */
void lt__hostdev_deinit(lt_hostdev *d);
void lt__hostdev_stats(const lt_hostdev *d, lt_device_stats *out);
/* Counts a call at this point and says whether it is the one to fail. */
bool lt__hostdev_fault(lt_hostdev *d, lt_fault_point point);
/* Options both know: threads, isa. E_NOT_FOUND without an error text when the key is another. */
lt_status lt__hostdev_option(const char *key, const char *value, uint32_t *threads, lt_cpu_isa *isa, lt_err *err);

/* The rows of lt_device_vt for queues and events; queue.c, event.c. */
lt_status lt__hostqueue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err);
void lt__hostqueue_destroy(lt_queue *q);
lt_status lt__hostqueue_sync(lt_queue *q, lt_err *err);
lt_status lt__hostqueue_copy_in(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err);
lt_status lt__hostqueue_copy_out(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err);
lt_status lt__hostqueue_copy(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err);
lt_status lt__hostqueue_fill(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err);
lt_status lt__hostqueue_call(lt_queue *q, lt_host_fn *fn, void *user, lt_err *err);
lt_status lt__hostqueue_launch(lt_queue *q, const lt_op_args *args, lt_err *err);
lt_status lt__hostqueue_wait(lt_queue *q, lt_event *ev, lt_err *err);
lt_status lt__hostevent_create(lt_device *dev, lt_event **out, lt_err *err);
void lt__hostevent_destroy(lt_event *ev);
lt_status lt__hostevent_record(lt_event *ev, lt_queue *q, lt_err *err);
bool lt__hostevent_done(const lt_event *ev);
lt_status lt__hostevent_sync(lt_event *ev, lt_err *err);
uint64_t lt__hostevent_time_ns(const lt_event *ev);
bool lt__hostdev_supports(const lt_device *dev, const lt_op_args *args, const char **why);
uint64_t lt__hostdev_scratch_bytes(const lt_device *dev, const lt_op_args *args);

#define LT_HOSTDEV_VT_ROWS                                                                                             \
    .queue_create = lt__hostqueue_create, .queue_destroy = lt__hostqueue_destroy, .queue_sync = lt__hostqueue_sync,    \
    .copy_in = lt__hostqueue_copy_in, .copy_out = lt__hostqueue_copy_out, .copy = lt__hostqueue_copy,                  \
    .fill = lt__hostqueue_fill, .call = lt__hostqueue_call, .launch = lt__hostqueue_launch,                            \
    .wait = lt__hostqueue_wait, .event_create = lt__hostevent_create, .event_destroy = lt__hostevent_destroy,          \
    .event_record = lt__hostevent_record, .event_done = lt__hostevent_done, .event_sync = lt__hostevent_sync,          \
    .event_time_ns = lt__hostevent_time_ns, .supports = lt__hostdev_supports, .scratch_bytes = lt__hostdev_scratch_bytes

/* "AMD EPYC", from the system. */
void lt__cpu_model(char *out, size_t bytes);

/* One record of an event: shared by the event, the command that reaches it and those that wait. */
struct lt_mark {
    _Atomic uint32_t refs;
    _Atomic uint32_t reached; /* 0, then 1; waited upon */
    _Atomic uint32_t sleepers;
    uint64_t         time_ns; /* this and err: written before reached */
    lt_err           err;     /* status LT_OK unless the queue had failed */
    lt_mark         *next;
};
struct lt_hostevent {
    lt_event        base;
    pthread_mutex_t lock;
    lt_mark        *mark; /* NULL: never recorded */
    lt_hostevent   *prev, *next;
};
void lt__mark_unref(lt_hostdev *d, lt_mark *m);
void lt__mark_reach(lt_mark *m, uint64_t time_ns, const lt_err *failed); /* failed: NULL when all is well */
void lt__mark_wait(lt_mark *m, uint64_t spin_ns);
/* The current mark with a reference, or NULL. */
lt_mark *lt__hostevent_mark(lt_hostevent *ev);
/* Appends a command that reaches m; takes over one reference on success. queue.c. */
lt_status lt__hostqueue_record(lt_hostqueue *q, lt_mark *m, lt_err *err);

/* launch.c: what a product reads of its weight; of experts those that are named. Addresses are pointers. */
uint64_t lt__hostdev_weight_bytes(const lt_op_args *args);
/* Address checks, the row, the team. args is the queue's copy; addresses become pointers. *mapped: bytes of
 * host memory that it read in place. */
lt_status lt__hostdev_launch(lt_hostdev *d, const lt_cpu_row *row, lt_op_args *args, uint64_t *mapped, lt_err *err);
lt_status lt__hostdev_resolve(lt_hostdev *d, const char *what, lt_addr a, uint64_t bytes, void **out, lt_err *err);
lt_status lt__hostdev_start_team(lt_hostdev *d, lt_err *err);
/* Bytes from the first to the last of a view; false when they overflow or the view is no view. */
bool lt__view_extent(const lt_view *v, uint64_t *out);

#endif
