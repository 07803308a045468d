/* host.h - what this machine and container allow: RAM, page-locked memory, cores. */
#ifndef LT_BASE_HOST_H
#define LT_BASE_HOST_H

#include "lowtide/base.h"

typedef struct lt__host_limits {
    uint64_t ram_bytes;       /* physical, or the cgroup's limit (v1 or v2) when lower */
    uint64_t available_bytes; /* MemAvailable, or cgroup limit less its non-reclaimable use when lower */
    uint64_t memlock_bytes;   /* RLIMIT_MEMLOCK; UINT64_MAX when unlimited */
    uint32_t cores;           /* affinity and cgroup quota respected, at least 1 */
} lt__host_limits;
void lt__host_limits_get(lt__host_limits *out); /* read anew each time: limits change at run time */
uint64_t lt__host_rss_peak(void);               /* VmHWM of this process */
uint64_t lt__host_anon(void);                   /* anonymous pages resident now: what this process really holds */
uint64_t lt__host_swapped(void);                /* VmSwap: what of this process lies on swap */
uint64_t lt__host_locked(void);                 /* VmLck */
uint64_t lt__host_rss(void);                    /* anonymous and file pages resident now */

/* The user's cache folder for this program, made when absent; false when there is none to write to. */
bool lt__cache_folder(char *out, size_t bytes);

/* A file that appears under its name only when finished. */
typedef struct lt__outfile lt__outfile;
LT_NODISCARD lt_status lt__outfile_open(lt_ctx *ctx, const char *path, lt__outfile **out, lt_err *err);
LT_NODISCARD lt_status lt__outfile_write(lt__outfile *f, const void *data, size_t bytes, lt_err *err);
LT_NODISCARD lt_status lt__outfile_commit(lt__outfile *f, lt_err *err); /* fsync, rename, frees f in any case */
void lt__outfile_abandon(lt__outfile *f);                               /* removes the temporary, frees */

#endif
