/* device.h - the inside of a CUDA device, shared by the files of this folder. */
#ifndef LT_CUDA_DEVICE_H
#define LT_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/ops.h"

/* Driver calls that can be made to fail, `fail=NAME:N`: the Nth of its kind returns the error the
 * driver would give, and the driver is not called. */
#define LT_CUDA_FAULTS(X)                                                                                              \
    X(reserve) X(create) X(map) X(access) X(alloc) X(register) X(copy) X(launch) X(record) X(wait) X(call) X(load)     \
    X(graph) X(managed)
typedef enum lt_cuda_fault {
#define X(name) LT_CUDA_FAULT_##name,
    LT_CUDA_FAULTS(X)
#undef X
    LT_CUDA_FAULT_COUNT
} lt_cuda_fault;

/* --- memory ------------------------------------------------------------------------- */

/* One step of commit. A physical piece is 1 to 16 of them behind each other, never across a
 * multiple of 16: 32 MiB, where a call of the driver costs the same as for 2 MiB. */
#define LT_CUDA_GRANULE ((uint64_t)2 << 20)
#define LT_CUDA_PIECE 16

typedef struct lt_cuda_granule {
    lt_cumemhandle handle; /* of the piece; at its first granule */
    uint8_t        span;   /* of the piece; at its first granule; 0: nothing mapped from here */
    uint8_t        live;   /* granules of it that are committed; at its first granule */
    uint8_t        back;   /* how far the first granule lies back */
    bool           mapped, committed; /* mapped: on the card */
    bool           hosted; /* managed: has, or had, pages on the host */
} lt_cuda_granule;

typedef struct lt_cuda_range {
    struct lt_cuda_range *next;
    CUdeviceptr           base, allocated; /* allocated: managed memory as it came, base is inside */
    uint64_t              bytes;
    size_t                n;
    lt_cuda_granule      *granules;
} lt_cuda_range;

typedef struct lt_cuda_pin {
    struct lt_cuda_pin *next;
    uintptr_t           at;
    size_t              bytes;
} lt_cuda_pin;

typedef struct lt_cuda_memory {
    pthread_mutex_t  lock;
    lt_cuda_range   *ranges;
    lt_cumemhandle  *spare; /* whole pieces of 32 MiB not mapped now */
    size_t           n_spare, max_spare, recycle, spare_cap; /* max_spare: recycle, or more while lt_device_keep says so */
    _Atomic uint64_t held, peak; /* physical bytes, spare ones included */
    CUstream         stream; /* managed: of prefetches */
    _Atomic uint64_t hosted, hosted_peak; /* managed: bytes on the host */
    pthread_rwlock_t pin_lock;
    lt_cuda_pin     *pins;
} lt_cuda_memory;

/* Managed memory leaves this much of the card free: another allocation between the look and the prefetch, page tables. */
#define LT_CUDA_MANAGED_MARGIN ((uint64_t)32 << 20)

/* --- queues ------------------------------------------------------------------------- */

/* The driver cannot be told to skip what follows a failed host call, nor does it carry that failure
 * over an event. So each queue counts what it was given, keeps for each queue of the device up to
 * where it depends on it (its clock), and has failed when one of those failed before that. */
#define LT_CUDA_QUEUES 64
typedef struct lt_cuda_clock { uint64_t at[LT_CUDA_QUEUES]; } lt_cuda_clock;

typedef struct lt_cuda_slot {
    bool             used;
    _Atomic bool     failed;
    uint64_t         next;               /* position of the next operation; goes on when the slot is used again */
    uint64_t         fail_at;            /* this and err: written once, under the device's lock, before failed */
    lt_err           err;
    _Atomic uint64_t host_given, host_done; /* 1 + the position of the last host call given, and run */
} lt_cuda_slot;

#define LT_CUDA_NAMES 8
#define LT_CUDA_NAME_BYTES 40

typedef struct lt_cuda_call lt_cuda_call;
typedef struct lt_cuda_queue {
    lt_queue              base; /* first */
    struct lt_cuda_queue *prev, *next;
    CUstream              stream;
    uint32_t              slot;
    lt_cuda_clock         clock;
    char                  names[LT_CUDA_NAMES][LT_CUDA_NAME_BYTES]; /* given since the last sync, a ring */
    uint64_t              n_names;
    lt_cuda_call         *calls;         /* all there are; the feeding thread's */
    _Atomic(lt_cuda_call *) spare;       /* pushed by the driver's thread, popped by the feeding one */
} lt_cuda_queue;

typedef struct lt_cuda_event {
    lt_event              base; /* first */
    struct lt_cuda_event *prev, *next;
    pthread_mutex_t       lock;
    CUevent               event;
    bool                  recorded;
    lt_cuda_clock         clock; /* of the queue at the record */
} lt_cuda_event;

/* Where copies of pageable memory wait for host calls before them. */
#define LT_CUDA_BOUNCE ((size_t)256 << 10)
#define LT_CUDA_BOUNCES 16
typedef struct lt_cuda_bounce {
    pthread_mutex_t lock;
    pthread_cond_t  freed;
    uint8_t        *memory;
    void           *block; /* what lt__alloc gave */
    uint32_t        free;  /* one bit a bounce */
    bool            ready;
    lt_err          refused; /* why they could not be pinned */
} lt_cuda_bounce;

/* --- kernels ------------------------------------------------------------------------ */

/* What the driver takes later without saying: 4 MiB were seen on an H200, for streams, events and page tables; a graph
 * of 676 kernels took nothing that could be measured. */
#define LT_CUDA_MARGIN ((uint64_t)8 << 20)

#define LT_CUDA_FUNCTIONS 512
typedef struct lt_cuda_function {
    char        name[56]; /* "": no function */
    uint32_t    family;
    uint32_t    shared_bytes; /* the most dynamic shared memory it was allowed */
    CUfunction  function;
} lt_cuda_function;

typedef struct lt_cuda_family {
    const char        *name;
    bool               waits; /* families.def */
    const lt_cuda_row *rows;
    const size_t      *n_rows;
} lt_cuda_family;
extern const lt_cuda_family lt__cuda_families[]; /* the last has no name */

#define LT_CUDA_FAMILIES 16
typedef struct lt_cuda_modules {
    pthread_mutex_t   lock;
    CUmodule          module[LT_CUDA_FAMILIES];
    _Atomic bool      loaded[LT_CUDA_FAMILIES];
    lt_cuda_function *functions; /* a hash table of LT_CUDA_FUNCTIONS */
    size_t            n_functions;
} lt_cuda_modules;

/* --- lists, list.c -------------------------------------------------------------------- */

typedef struct lt_cuda_lists {
    pthread_mutex_t lock;     /* one capture at a time */
    _Atomic(CUstream) stream; /* captures only; no work ever runs on it but uploads */
    uint64_t        captured; /* kernels since the capture began */
    bool            early;    /* capture kernels so that each is launched while the one before ends */
} lt_cuda_lists;

/* --- reports of kernels, wrong.c ---------------------------------------------------- */

struct lt_cuda_wrong;
typedef struct lt_cuda_wrong_page {
    void                 *block;
    struct lt_cuda_wrong *host;
    CUdeviceptr           device;
    bool                  registered;
} lt_cuda_wrong_page;

/* --- device ------------------------------------------------------------------------- */

struct lt_cuda_device {
    lt_device        base; /* first */
    lt_cu            cu;
    lt_nvml          nvml;
    CUdevice         device;
    CUcontext        context;
    lt_cuda_props    props;
    char             name[64], spoken[24]; /* "NVIDIA H200"; "CUDA 13.0" */
    char             id[48];
    bool             managed, places; /* places: kept memory can be held by pieces that nobody maps */
    bool             vmm, sync_check, read_only_register, maps_host, kernels, graphs, fuse, early;
    uint64_t         total_bytes;
    bool             listed; /* NVML's number of this process is its own: what it holds can be asked */
    _Atomic uint64_t fixed_bytes;
    _Atomic uint64_t fail_in[LT_CUDA_FAULT_COUNT];

    lt_cuda_memory   memory;
    lt_cuda_modules  modules;
    lt_cuda_bounce   bounce;
    lt_cuda_wrong_page wrong;
    lt_cuda_lists    lists;

    pthread_mutex_t  lock; /* the lists, the slots, lost_err */
    lt_cuda_queue   *queues;
    lt_cuda_event   *events;
    lt_cuda_slot     slots[LT_CUDA_QUEUES];
    _Atomic uint32_t n_slots; /* used at some time */
    _Atomic bool     lost;
    lt_err           lost_err; /* written once, before lost */
    pthread_mutex_t  time_lock; /* not `lock`: a host call may wait for that one */
    CUstream         time_stream;
    CUevent          time_base;
    uint64_t         time_base_ns, opened_ns;

    _Atomic uint64_t copies, h2d_bytes, d2h_bytes, d2d_bytes, launches, graph_runs;
};

static inline lt_cuda_device *lt__cuda_of(const lt_device *dev) { return (lt_cuda_device *)dev; }

bool lt__cuda_fault(lt_cuda_device *d, lt_cuda_fault point);
/* Every call of the driver stands between these. On failure of enter nothing is to be left. */
LT_NODISCARD lt_status lt__cuda_enter(lt_cuda_device *d, lt_err *err);
void lt__cuda_leave(lt_cuda_device *d);
/* lt__cu_fail; a fatal error also marks the device lost. */
lt_status lt__cuda_fail(lt_cuda_device *d, lt_err *err, lt_curesult r, const char *fmt, ...) LT_PRINTF(4, 5);
void lt__cuda_set_lost(lt_cuda_device *d, const lt_err *err);

void lt__cuda_memory_init(lt_cuda_device *d);
void lt__cuda_memory_deinit(lt_cuda_device *d); /* the context is current */
lt_status lt__cuda_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err);
void lt__cuda_unreserve(lt_device *dev, lt_addr base, uint64_t bytes);
lt_status lt__cuda_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err);
void lt__cuda_decommit(lt_device *dev, lt_addr base, uint64_t bytes);
void lt__cuda_keep(lt_device *dev, uint64_t bytes);
/* Whether a launch's address is of host memory read in place: of no reservation. */
bool lt__cuda_on_host(lt_cuda_device *d, lt_addr at);
/* What memory.c and managed.c share; all under the memory's lock, in the context. */
void lt__cuda_add_held(lt_cuda_memory *m, uint64_t bytes);
void lt__cuda_drop_held(lt_cuda_memory *m, uint64_t bytes);
void lt__cuda_release_piece(lt_cuda_device *d, lt_cumemhandle handle, uint32_t span);
void lt__cuda_note(lt_cuda_device *d, lt_curesult r, const char *what); /* what cannot be undone is logged */
LT_NODISCARD lt_status lt__cuda_managed_check(lt_cuda_device *d, lt_err *err);
LT_NODISCARD lt_status lt__cuda_managed_reserve(lt_cuda_device *d, lt_cuda_range *r, lt_err *err);
void lt__cuda_managed_free(lt_cuda_device *d, lt_cuda_range *r);
LT_NODISCARD lt_status lt__cuda_managed_commit(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end, lt_err *err);
void lt__cuda_managed_decommit(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end);
lt_status lt__cuda_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err);
void lt__cuda_unpin(lt_device *dev, void *ptr, size_t bytes);
lt_status lt__cuda_map_host(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err);
bool lt__cuda_pinned(lt_cuda_device *d, const void *ptr, uint64_t bytes);

lt_status lt__cuda_queue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err);
void lt__cuda_queue_destroy(lt_queue *q);
lt_status lt__cuda_queue_sync(lt_queue *q, lt_err *err);
lt_status lt__cuda_copy_in(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err);
lt_status lt__cuda_copy_out(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err);
lt_status lt__cuda_copy(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err);
lt_status lt__cuda_fill(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err);
lt_status lt__cuda_call_host(lt_queue *q, lt_host_fn *fn, void *user, lt_err *err);
lt_status lt__cuda_queue_launch(lt_queue *q, const lt_op_args *args, lt_err *err);
/* The row that runs such a launch, with what it wants given. */
LT_NODISCARD lt_status
lt__cuda_row_of(lt_cuda_device *d, const lt_op_args *args, const lt_cuda_row **out, lt_err *err);

void lt__cuda_lists_init(lt_cuda_device *d);
void lt__cuda_lists_deinit(lt_cuda_device *d); /* the context is current */
lt_status lt__cuda_list_compile(lt_device *dev, lt_launch_list *list, lt_err *err);
lt_status lt__cuda_list_run(lt_queue *q, lt_launch_list *list, lt_err *err);
void lt__cuda_list_free(lt_device *dev, lt_launch_list *list);
lt_status lt__cuda_wait(lt_queue *q, lt_event *ev, lt_err *err);
LT_NODISCARD lt_status lt__cuda_bounce_ready(lt_cuda_device *d, lt_err *err); /* before a host call */
void lt__cuda_bounce_deinit(lt_cuda_device *d);

/* What the copies of queue.c and bounce.c are made of. begin refuses on a failed queue or a lost
 * device, notes the name and enters the context; end counts the position, leaves, and words errors. */
LT_NODISCARD lt_status lt__cuda_begin(lt_cuda_queue *q, const char *name, lt_err *err);
void lt__cuda_note_name(lt_cuda_queue *q, const char *name);
lt_status lt__cuda_end(lt_cuda_queue *q, lt_curesult r, const char *name, lt_err *err);
/* An internal host call: told whether the queue had failed before it. */
typedef lt_status lt_cuda_host_fn(void *user, bool failed, lt_err *err);
struct lt_cuda_call {
    lt_cuda_call    *next_all, *next_spare;
    lt_cuda_queue   *queue;
    lt_host_fn      *fn;       /* one of these */
    lt_cuda_host_fn *inner;
    void            *user;
    void            *host;     /* for bounces */
    uint64_t         bytes;
    uint32_t         bounce;
    uint64_t         position;
    uint32_t         n_clock;
    lt_cuda_clock    clock;
};
LT_NODISCARD lt_status lt__cuda_take_call(lt_cuda_queue *q, lt_cuda_call **out, lt_err *err);
/* Gives it to the stream; the node is the stream's then, or spare again on failure. */
LT_NODISCARD lt_status lt__cuda_give_call(lt_cuda_queue *q, lt_cuda_call *c, const char *name, lt_err *err);
/* Whether a host call this queue depends on may still be to run. */
bool lt__cuda_host_pending(const lt_cuda_queue *q);
LT_NODISCARD lt_status
lt__cuda_bounce_copy(lt_cuda_queue *q, lt_addr device, void *host, uint64_t bytes, bool in, lt_err *err);
bool lt__cuda_clock_failed(lt_cuda_device *d, const lt_cuda_clock *clock, uint32_t n, lt_err *err);

lt_status lt__cuda_event_create(lt_device *dev, lt_event **out, lt_err *err);
void lt__cuda_event_destroy(lt_event *ev);
lt_status lt__cuda_event_record(lt_event *ev, lt_queue *q, lt_err *err);
bool lt__cuda_event_done(const lt_event *ev);
lt_status lt__cuda_event_sync(lt_event *ev, lt_err *err);
uint64_t lt__cuda_event_time_ns(const lt_event *ev);
lt_status lt__cuda_time_init(lt_cuda_device *d, lt_err *err);
void lt__cuda_time_deinit(lt_cuda_device *d);

LT_NODISCARD lt_status lt__cuda_wrong_init(lt_cuda_device *d, lt_err *err); /* the context is current */
void lt__cuda_wrong_deinit(lt_cuda_device *d);
/* After a sync: what a kernel reported, once. */
lt_status lt__cuda_wrong_check(lt_cuda_device *d, lt_err *err);

void lt__cuda_modules_init(lt_cuda_device *d);
void lt__cuda_modules_deinit(lt_cuda_device *d);
const lt_cuda_row *lt__cuda_find(const lt_cuda_device *d, const lt_op_args *args, uint32_t *family, const char **why);
bool lt__cuda_supports(const lt_device *dev, const lt_op_args *args, const char **why);
uint64_t lt__cuda_scratch_bytes(const lt_device *dev, const lt_op_args *args);
lt_status lt__cuda_prepare(lt_device *dev, const lt_op_args *args, lt_err *err);

/* Compute capabilities that this build has kernels for. */
void lt__cuda_list_archs(char *out, size_t bytes);
void lt__cuda_probe(lt_ctx *ctx, char *out, size_t bytes, lt_finding_fn found, void *user);

#endif
