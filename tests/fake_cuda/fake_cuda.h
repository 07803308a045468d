/* fake_cuda.h - a driver made of host memory and threads, to test the CUDA device without a card.
 *
 * It is as unkind as the real one may be: pageable copies read their source during the call or hold
 * the caller up; host calls of all streams share one thread's turn; every rule of the interface that
 * is broken is counted as a violation. */
#ifndef LT_TESTS_FAKE_CUDA_H
#define LT_TESTS_FAKE_CUDA_H

#include "backend/cuda/abi.h"

#include <stdbool.h>

typedef struct fake_cuda_counts {
    uint64_t reservations, handles, mappings, allocations, registrations, streams, events, contexts, modules, graphs;
    uint64_t held_bytes, peak_held_bytes; /* physical */
    uint64_t host_bytes, advised_bytes;   /* managed: with pages on the host; with advice, once for each kind */
    uint64_t moved_bytes, evicted_bytes;  /* managed: with their content, and of those to make room */
    uint64_t violations, launches, launch_x; /* launches: given, and of replayed graphs */
    char     violation[256]; /* the first */
} fake_cuda_counts;

typedef struct fake_cuda_control {
    void (*reset)(void); /* counters, faults, settings; objects must be gone */
    void (*counts)(fake_cuda_counts *out);
    /* The nth call from now of a function (by its symbol) returns this. */
    void (*fail_call)(const char *symbol, uint64_t nth, lt_curesult result);
    uint64_t (*calls)(const char *symbol);
    /* Work of streams from now on breaks the context. */
    void (*break_context)(lt_curesult result);
    void (*set_attribute)(int attribute, int value);
    void (*set_memory)(uint64_t total);
    void (*set_version)(int version);
    /* Another process takes so much when a context is made and when a module is loaded; told_apart: NVML lists us as ourselves. */
    void (*set_neighbour)(uint64_t bytes, bool told_apart);
    void (*set_devices)(int n); /* those beside the first have no concurrent managed access */
} fake_cuda_control;

typedef const fake_cuda_control *fake_cuda_control_fn(void); /* symbol "fake_cuda" */

#define FAKE_CUDA_MEMORY ((uint64_t)1 << 30)
#define FAKE_CUDA_CONTEXT_BYTES ((uint64_t)48 << 20)
#define FAKE_CUDA_MODULE_BYTES ((uint64_t)2 << 20)
#define FAKE_CUDA_BIAS 0x5100000000000000ull /* between an address and the host memory that is behind it */

#endif
