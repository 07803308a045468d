/* host.c - RAM, container limits, cores of this process. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"

/* First number behind `key` in a /proc style file, in its own unit; false if absent. */
static bool read_field(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    char line[512];
    size_t n = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0)
            found = sscanf(line + n, "%lu", out) == 1;
    fclose(f);
    return found;
}

/* A file of one number; "max" and absurdly large ones count as no limit. */
static bool read_limit(const char *path, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fscanf(f, "%lu", out) == 1 && *out < (UINT64_C(1) << 60);
    fclose(f);
    return ok;
}

/* The cgroup folder of this process for a v1 controller, or v2 with controller "". Inside a
 * container the path may name a place that is not mounted; then the root of the mount counts. */
static bool cgroup_path(const char *controller, char *out, size_t bytes)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *ctl = strchr(line, ':');
        char *path = ctl ? strchr(ctl + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        ctl++;
        if (strcmp(ctl, controller) == 0) {
            const char *root = *controller ? controller : "";
            snprintf(out, bytes, "/sys/fs/cgroup/%s%s", root, path);
            if (access(out, R_OK) != 0)
                snprintf(out, bytes, "/sys/fs/cgroup/%s", root);
            found = access(out, R_OK) == 0;
        }
    }
    fclose(f);
    return found;
}

/* Limits of this cgroup and of every parent, the lowest wins; use without what the kernel can drop. */
static void memory_limits(lt__host_limits *l)
{
    static const struct { const char *controller, *limit, *use, *inactive; } version[] = {
        {"", "memory.max", "memory.current", "inactive_file "},
        {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
    };
    for (int v = 0; v < 2; v++) {
        char dir[600];
        if (!cgroup_path(version[v].controller, dir, sizeof dir))
            continue;
        while (strlen(dir) >= strlen("/sys/fs/cgroup")) {
            char path[700];
            uint64_t limit, use = 0, inactive = 0;
            snprintf(path, sizeof path, "%s/%s", dir, version[v].limit);
            if (read_limit(path, &limit)) {
                snprintf(path, sizeof path, "%s/%s", dir, version[v].use);
                read_limit(path, &use);
                snprintf(path, sizeof path, "%s/memory.stat", dir);
                read_field(path, version[v].inactive, &inactive);
                use -= lt__min_u64(use, inactive);
                l->ram_bytes = lt__min_u64(l->ram_bytes, limit);
                l->available_bytes = lt__min_u64(l->available_bytes, limit - lt__min_u64(limit, use));
            }
            char *slash = strrchr(dir, '/');
            if (!slash || slash == dir)
                break;
            *slash = 0;
        }
    }
}

static uint32_t count_cores(void)
{
    cpu_set_t set;
    uint32_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = (uint32_t)CPU_COUNT(&set);
    char dir[600], path[700];
    uint64_t quota = 0, period = 0;
    if (cgroup_path("", dir, sizeof dir)) {
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        FILE *f = fopen(path, "re");
        if (f) {
            if (fscanf(f, "%lu %lu", &quota, &period) != 2)
                quota = period = 0;
            fclose(f);
        }
    }
    if (!period && (cgroup_path("cpu", dir, sizeof dir) || cgroup_path("cpu,cpuacct", dir, sizeof dir))) {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_limit(path, &quota))
            quota = 0;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_limit(path, &period))
            period = 0;
    }
    if (quota && period)
        cores = (uint32_t)lt__min_u64(cores, (quota + period - 1) / period);
    return cores ? cores : 1;
}

void lt__host_limits_get(lt__host_limits *out)
{
    uint64_t kib = 0;
    memset(out, 0, sizeof *out);
    out->ram_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->available_bytes = read_field("/proc/meminfo", "MemAvailable:", &kib) ? kib << 10 : out->ram_bytes;
    memory_limits(out);
    struct rlimit r;
    out->memlock_bytes = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0 && r.rlim_cur != RLIM_INFINITY)
        out->memlock_bytes = r.rlim_cur;
    out->cores = count_cores();
}

uint64_t lt__host_rss_peak(void)
{
    uint64_t kib = 0;
    return read_field("/proc/self/status", "VmHWM:", &kib) ? kib << 10 : 0;
}

uint64_t lt__host_swapped(void)
{
    uint64_t kib = 0;
    return read_field("/proc/self/status", "VmSwap:", &kib) ? kib << 10 : 0;
}

uint64_t lt__host_locked(void)
{
    uint64_t kib = 0;
    return read_field("/proc/self/status", "VmLck:", &kib) ? kib << 10 : 0;
}

uint64_t lt__host_rss(void)
{
    uint64_t kib = 0;
    return read_field("/proc/self/status", "VmRSS:", &kib) ? kib << 10 : 0;
}

uint64_t lt__host_anon(void)
{
    uint64_t kib = 0;
    return read_field("/proc/self/status", "RssAnon:", &kib) ? kib << 10 : 0;
}

bool lt__cache_folder(char *out, size_t bytes)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = xdg && *xdg     ? snprintf(out, bytes, "%s", xdg)
            : home && *home ? snprintf(out, bytes, "%s/.cache", home)
                            : -1;
    if (n < 0 || (size_t)n + sizeof "/lowtide" > bytes)
        return false;
    mkdir(out, 0755);
    memcpy(out + n, "/lowtide", sizeof "/lowtide");
    mkdir(out, 0755);
    return access(out, W_OK) == 0;
}
