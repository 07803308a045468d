/* backend.h - what a backend implements: one device vtable and rows of ops.
 *
 * Included by backends, by the thin dispatch in device.c and by the engine
 * (lt__queue_launch, lists); by nobody else. device.c checks arguments and counts; a
 * backend sees only valid calls. */
#ifndef LT_BACKEND_H
#define LT_BACKEND_H

#include "graph/op.h"
#include "lowtide/device.h"

/* Launches whose every address is fixed, given as one again and again. The args and what they point to
 * outlive it; their order is the order of the work. */
typedef struct lt_launch_list {
    const lt_op_args *const *args;
    size_t   n;
    bool     replay;     /* runs many times: what a device prepares for it pays */
    lt_addr  dead;       /* after the list nobody reads these bytes before writing them; what only ops of the */
    uint64_t dead_bytes; /* list read in between need not be written there at all */
    bool     checked;    /* this and compiled are of device.c and the device; zero at first */
    void    *compiled;
} lt_launch_list;

typedef struct lt_device_vt {
    void (*close)(lt_device *dev);
    void (*get_info)(const lt_device *dev, lt_device_info *out);
    void (*get_stats)(const lt_device *dev, lt_device_stats *out);
    uint64_t (*free_bytes)(const lt_device *dev);
    lt_status (*reserve)(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err);
    void (*unreserve)(lt_device *dev, lt_addr base, uint64_t bytes);
    lt_status (*commit)(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err);
    void (*decommit)(lt_device *dev, lt_addr base, uint64_t bytes);
    void (*keep)(lt_device *dev, uint64_t bytes); /* NULL: nobody else is there to take it */
    lt_status (*pin)(lt_device *dev, void *ptr, size_t bytes, lt_err *err);
    void (*unpin)(lt_device *dev, void *ptr, size_t bytes);
    lt_status (*map_host)(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err); /* NULL: it cannot */

    lt_status (*queue_create)(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err);
    void (*queue_destroy)(lt_queue *q);
    lt_status (*queue_sync)(lt_queue *q, lt_err *err);
    lt_status (*copy_in)(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err);
    lt_status (*copy_out)(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err);
    lt_status (*copy)(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err);
    lt_status (*fill)(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err);
    lt_status (*call)(lt_queue *q, lt_host_fn *fn, void *user, lt_err *err);
    /* On compute queues only. Copies *args; the views' memory must live until the launch ran. */
    lt_status (*launch)(lt_queue *q, const lt_op_args *args, lt_err *err);
    lt_status (*wait)(lt_queue *q, lt_event *ev, lt_err *err);

    lt_status (*event_create)(lt_device *dev, lt_event **out, lt_err *err);
    void (*event_destroy)(lt_event *ev);
    lt_status (*event_record)(lt_event *ev, lt_queue *q, lt_err *err);
    bool (*event_done)(const lt_event *ev);
    lt_status (*event_sync)(lt_event *ev, lt_err *err);
    uint64_t (*event_time_ns)(const lt_event *ev);

    /* Whether a launch of these dtypes and parameters would run here. Addresses are
     * not looked at. On refusal *why is a static sentence. */
    bool (*supports)(const lt_device *dev, const lt_op_args *args, const char **why);
    /* Scratch bytes of device memory the launch wants in args->scratch; 0 is usual. */
    uint64_t (*scratch_bytes)(const lt_device *dev, const lt_op_args *args);
    /* Loads what such a launch needs, so that fixed_bytes counts it before an arena is sized; a launch
     * does it too where this was not called. NULL: nothing to load. */
    lt_status (*prepare)(lt_device *dev, const lt_op_args *args, lt_err *err);

    /* All three or none: then lists run launch by launch. A list runs as its launches would, to the bit,
     * and fails as they would. Compiling allocates and loads what running needs; running does it where
     * this was not called. free: no queue holds the list any more. */
    lt_status (*list_compile)(lt_device *dev, lt_launch_list *list, lt_err *err);
    lt_status (*list_run)(lt_queue *q, lt_launch_list *list, lt_err *err);
    void (*list_free)(lt_device *dev, lt_launch_list *list);
} lt_device_vt;

/* Backends embed these as their first member. */
struct lt_device { const lt_device_vt *vt; lt_ctx *ctx; };
struct lt_queue  { lt_device *dev; lt_queue_kind kind; };
struct lt_event  { lt_device *dev; };

typedef struct lt_backend {
    const char *name; /* the part of a spec before ':' */
    const char *help; /* one line for `doctor` and --help */
    /* opts is the text behind ':', "" when there is none. */
    lt_status (*open)(lt_ctx *ctx, const char *opts, lt_device **out, lt_err *err);
    /* lt_device_info's id of the device that opts name, without opening it; false: it has none. NULL: none has. */
    bool (*identify)(lt_ctx *ctx, const char *opts, char *id, size_t bytes);
    /* As lt_device_probe; NULL: nothing to look for. */
    void (*probe)(lt_ctx *ctx, char *out, size_t bytes, lt_finding_fn found, void *user);
} lt_backend;

extern const lt_backend lt__backend_cpu, lt__backend_sim, lt__backend_cuda;
/* NULL-terminated; registry.c. */
const lt_backend *const *lt__backend_list(void);

LT_NODISCARD lt_status lt__queue_launch(lt_queue *q, const lt_op_args *args, lt_err *err);
bool lt__device_supports(const lt_device *dev, const lt_op_args *args, const char **why);
uint64_t lt__device_scratch_bytes(const lt_device *dev, const lt_op_args *args);
LT_NODISCARD lt_status lt__device_prepare(lt_device *dev, const lt_op_args *args, lt_err *err);
/* Whether lists are more here than so many launches. */
bool lt__device_has_lists(const lt_device *dev);
LT_NODISCARD lt_status lt__list_compile(lt_device *dev, lt_launch_list *list, lt_err *err);
LT_NODISCARD lt_status lt__list_run(lt_queue *q, lt_launch_list *list, lt_err *err);
void lt__list_free(lt_device *dev, lt_launch_list *list);

#endif
