/* device.h - a place that holds memory and does work in order.
 *
 *     lt_device *dev;  lt_queue *q;  lt_addr mem;
 *     lt_device_open(ctx, "sim:vram=1G,h2d=12G", &dev, &err);
 *     lt_queue_create(dev, LT_QUEUE_COPY, &q, &err);
 *     lt_device_reserve(dev, 64 << 20, &mem, &err);
 *     lt_device_commit(dev, mem, 64 << 20, &err);
 *     lt_queue_copy_in(q, mem, buffer, bytes, &err);
 *     lt_queue_sync(q, &err);
 *
 * Order      work on one queue runs in the order it was given; between queues only
 *            events order it. Copies read and write their host side until they ran.
 * Lifetime   queues and events borrow the device. Closing a device waits for its queues.
 * Threads    any thread may open, create, commit and query; one queue is fed by one
 *            thread at a time; an event is recorded by one thread at a time.
 * Errors     a call that cannot be enqueued fails at once. Work that fails later makes
 *            its queue sticky: the queue skips what follows, and sync and every later
 *            call on it return that first error, which names the operation. An event
 *            recorded behind a failure carries it: who waits for it fails with it.
 */
#ifndef LT_DEVICE_H
#define LT_DEVICE_H

#include "lowtide/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_device lt_device;
typedef struct lt_queue  lt_queue;
typedef struct lt_event  lt_event;
typedef uint64_t         lt_addr; /* device address; 0 is none */

typedef enum lt_queue_kind { LT_QUEUE_COMPUTE, LT_QUEUE_COPY, LT_QUEUE_KIND_COUNT } lt_queue_kind;

/* What attention over a prompt may cost in exactness; one row after another is always EXACT (docs/arithmetic.md). */
typedef enum lt_attention {
    LT_ATTENTION_FLASH, /* products of halves where the device has them, else EXACT */
    LT_ATTENTION_EXACT, /* the same bits on every device */
    LT_ATTENTION_SAGE,  /* products of queries and keys in int8; refused where the device has no such kernel */
    LT_ATTENTION_COUNT
} lt_attention;

typedef struct lt_device_info {
    char     name[96];         /* "cpu: AMD EPYC, 2 threads, avx2" */
    char     kind[16];         /* "cpu", "sim", "cuda" */
    char     id[48];           /* the same for every process on this machine, a file name; "": memory of its own, or RAM */
    char     memory_mode[16];  /* "host", "device", "managed": what commit gives */
    uint64_t total_bytes;      /* of the device; on cpu: RAM within the container's limit */
    uint64_t free_bytes;       /* what could be committed now */
    uint64_t fixed_bytes;      /* what opening the device itself took out of total_bytes */
    uint64_t commit_bytes;     /* granularity of commit */
    uint64_t align_bytes;      /* natural alignment of an allocation */
    bool     host_visible;     /* an lt_addr is also a host pointer */
    bool     memlock;          /* page-locking host memory counts against RLIMIT_MEMLOCK */
    bool     maps_host;        /* launches can read page-locked host memory where it lies: lt_device_map_host */
    bool     virtual_clock;    /* durations are simulated, see sim */
    uint32_t compute_threads;  /* 0 when the notion does not apply */
    char     isa[16];          /* "ref", "avx2", "avx512"; "" when the notion does not apply */
    double   link_rate;        /* set host-to-device rate in bytes a second; 0: not a setting, measure it */
    double   compute_rate;     /* likewise, on a virtual clock: bytes of weights a second */
} lt_device_info;

/* spec is "cpu[:key=value,...]", "sim[:...]"; a typo is an error that names the key.
 *   cpu: threads=N, isa=ref|avx2|avx512, mem=SIZE, lock=1 (what is committed is held in RAM, never swapped)
 *   sim: the same, and vram=SIZE, h2d=RATE, d2h=RATE, latency=TIME, clock=real|virtual,
 *        compute=RATE (bytes of weights a second, virtual clock), fixed=SIZE, poison=on|off,
 *        card=FILE (one card shared by all devices, also of other processes, that name this file),
 *        fail=POINT:N (POINT is commit, copy, launch, pin, or read, map, alloc of the context
 *        while the device is open; N counts from 1)
 *   cuda: device=N, managed=1 (one range of managed memory, prefetched to the card), sync-check=1, vmm=0, ...
 * docs/architecture.md says what each means. */
LT_API LT_NODISCARD lt_status
lt_device_open(lt_ctx *ctx, const char *spec, lt_device **out, lt_err *err);
/* One line on what a kind of device found on this machine ("cuda": driver, card, link, kernels), or why it
 * found nothing, and, where found is given, each problem with what helps against it; opens it for the moment. False when
 * there is nothing to look for. */
typedef void (*lt_finding_fn)(void *user, const char *problem, const char *remedy);
LT_API bool lt_device_probe(lt_ctx *ctx, const char *kind, char *out, size_t bytes, lt_finding_fn found, void *user);
/* lt_device_info's id of the device that spec names, without opening it; false: it has none. */
LT_API bool lt_device_identify(lt_ctx *ctx, const char *spec, char *id, size_t bytes);
LT_API void lt_device_close(lt_device *dev); /* NULL is fine */
LT_API void lt_device_get_info(const lt_device *dev, lt_device_info *out);
/* free_bytes of the info alone, cheap enough to be asked every few milliseconds while work runs: what
 * other processes take and give back shows here. */
LT_API uint64_t lt_device_free_bytes(const lt_device *dev);

/* Address space without memory; commit puts memory behind a part of it. base and
 * bytes of commit and decommit are multiples of commit_bytes. Committed memory has
 * any content. Decommit is the caller's promise that no queued work touches it. Unreserve takes
 * commits along, which is cheaper than a decommit before it where memory is managed. */
LT_API LT_NODISCARD lt_status
lt_device_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err);
LT_API void lt_device_unreserve(lt_device *dev, lt_addr base, uint64_t bytes);
LT_API LT_NODISCARD lt_status
lt_device_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err);
LT_API void lt_device_decommit(lt_device *dev, lt_addr base, uint64_t bytes);

/* From now on up to `bytes` of what is given back stay with this device for its next commits, so that no other
 * process can take them in between; 0 lets go of them. A device that cannot ignores it. */
LT_API void lt_device_keep(lt_device *dev, uint64_t bytes);

/* Page-locked host memory, for copies at full speed. E_UNSUPPORTED or E_HOST_OOM are
 * ordinary answers: pageable memory works too, slower. */
LT_API LT_NODISCARD lt_status
lt_device_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err);
LT_API void lt_device_unpin(lt_device *dev, void *ptr, size_t bytes);
/* The address at which launches read [ptr, ptr + bytes) of host memory in place, over the link at each reading; every
 * byte page-locked, by one lt_device_pin or by several side by side. To be read only, until any of it is unpinned.
 * E_UNSUPPORTED where the device cannot, or not with one address for all of it. */
LT_API LT_NODISCARD lt_status
lt_device_map_host(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err);

LT_API LT_NODISCARD lt_status
lt_queue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err);
LT_API void lt_queue_destroy(lt_queue *q); /* waits for what it holds */
LT_API LT_NODISCARD lt_status lt_queue_sync(lt_queue *q, lt_err *err);

LT_API LT_NODISCARD lt_status
lt_queue_copy_in(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err);
LT_API LT_NODISCARD lt_status
lt_queue_copy_out(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err);
LT_API LT_NODISCARD lt_status
lt_queue_copy(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err);
LT_API LT_NODISCARD lt_status
lt_queue_fill(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err);
/* Runs on the queue, in order, on a thread of the device. A failure becomes the
 * queue's error. fn must not call the device. */
typedef lt_status lt_host_fn(void *user, lt_err *err);
LT_API LT_NODISCARD lt_status lt_queue_call(lt_queue *q, lt_host_fn *fn, void *user, lt_err *err);

LT_API LT_NODISCARD lt_status lt_event_create(lt_device *dev, lt_event **out, lt_err *err);
LT_API void lt_event_destroy(lt_event *ev);
/* A later record replaces the earlier one; waits given before it keep the earlier. */
LT_API LT_NODISCARD lt_status lt_event_record(lt_event *ev, lt_queue *q, lt_err *err);
LT_API LT_NODISCARD lt_status lt_queue_wait(lt_queue *q, lt_event *ev, lt_err *err);
LT_API bool lt_event_done(const lt_event *ev); /* never recorded counts as done */
LT_API LT_NODISCARD lt_status lt_event_sync(lt_event *ev, lt_err *err);
/* Device time at which the last record was reached, in ns, 0 until it was; virtual on a
 * virtual clock, where lt_event_done moves no time, but sync does: work given after it
 * starts no earlier. */
LT_API uint64_t lt_event_time_ns(const lt_event *ev);

typedef struct lt_device_stats {
    uint64_t committed_bytes, peak_committed_bytes;
    uint64_t host_bytes, peak_host_bytes;   /* managed memory: what was given back and lies on the host, at most */
    uint64_t copies, h2d_bytes, d2h_bytes, d2d_bytes; /* what launches read of mapped host memory is in none of them */
    uint64_t launches;                      /* of ops; of kernels on cuda */
    uint64_t graphs;                        /* times a prepared graph of launches was given whole */
    uint64_t copy_busy_ns, compute_busy_ns; /* time the engines really worked; 0 on cuda, which does not say */
    uint64_t compute_stall_ns;              /* compute queues waiting for events */
    uint64_t now_ns;                        /* latest device time of any queue */
} lt_device_stats;
LT_API void lt_device_get_stats(const lt_device *dev, lt_device_stats *out);

#ifdef __cplusplus
}
#endif
#endif
