/* The host as a device: real compute, memory of the host, addresses that are pointers. */
#include "backend/cpu/hostdev.h"
#include "base/host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct cpu_device {
    lt_hostdev host; /* first */
    uint64_t   mem_bytes;
    bool       locked; /* commits are held in RAM: swap cannot take weights */
} cpu_device;

static cpu_device *cpu_of(const lt_device *dev)
{
    return (cpu_device *)dev;
}

static void cpu_close(lt_device *dev)
{
    cpu_device *c = cpu_of(dev);
    lt_ctx *ctx = dev->ctx;
    lt__hostdev_deinit(&c->host);
    lt__free(ctx, c, sizeof *c);
}

void lt__cpu_model(char *out, size_t bytes)
{
    char line[256];
    snprintf(out, bytes, "x86-64");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, bytes, "%.*s", (int)bytes - 1, value);
        break;
    }
    fclose(f);
}

/* Read anew each time: the container's limit may change while we run. */
static uint64_t limit_bytes(const cpu_device *c, uint64_t *available)
{
    lt__host_limits l;
    lt__host_limits_get(&l);
    if (available)
        *available = l.available_bytes;
    return lt__min_u64(c->mem_bytes, l.ram_bytes);
}

static uint64_t cpu_free_bytes(const lt_device *dev)
{
    const cpu_device *c = cpu_of(dev);
    uint64_t available, committed, peak, total = limit_bytes(c, &available);
    lt__hostmem_usage((lt_hostmem *)&c->host.mem, &committed, &peak);
    return total > committed ? lt__min_u64(total - committed, available) : 0;
}

static void cpu_get_info(const lt_device *dev, lt_device_info *out)
{
    const cpu_device *c = cpu_of(dev);
    char model[48];
    memset(out, 0, sizeof *out);
    lt__cpu_model(model, sizeof model);
    snprintf(out->name, sizeof out->name, "cpu: %s, %u threads, %s", model, c->host.threads,
             lt__cpu_isa_name(c->host.isa));
    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->memory_mode, sizeof out->memory_mode, "host");
    out->total_bytes = limit_bytes(c, NULL);
    out->free_bytes = cpu_free_bytes(dev);
    out->commit_bytes = LT_HOSTMEM_GRANULE;
    out->align_bytes = 64;
    out->host_visible = true;
    out->compute_threads = c->host.threads;
    snprintf(out->isa, sizeof out->isa, "%s", lt__cpu_isa_name(c->host.isa));
}

static void cpu_get_stats(const lt_device *dev, lt_device_stats *out)
{
    lt__hostdev_stats(&cpu_of(dev)->host, out);
}

static lt_status cpu_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err)
{
    uint8_t *p = NULL;
    lt_status s = lt__hostmem_reserve(&cpu_of(dev)->host.mem, bytes, &p, err);
    if (s == LT_OK)
        *out = (lt_addr)(uintptr_t)p;
    return s;
}

static void cpu_unreserve(lt_device *dev, lt_addr base, uint64_t bytes)
{
    lt__hostmem_unreserve(&cpu_of(dev)->host.mem, lt_cpu_ptr(base), bytes);
}

static lt_status cpu_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err)
{
    cpu_device *c = cpu_of(dev);
    lt_status s = lt__hostmem_commit(&c->host.mem, lt_cpu_ptr(base), bytes, limit_bytes(c, NULL), err);
    if (s != LT_OK || !c->locked || mlock(lt_cpu_ptr(base), bytes) == 0)
        return s;
    int e = errno;
    lt__hostmem_decommit(&c->host.mem, lt_cpu_ptr(base), bytes);
    return lt__fail_native(err, LT_E_HOST_OOM, e, "cpu: %lu bytes cannot be locked in RAM: %s; raise ulimit -l, or do without lock=1", bytes,
                           e == EPERM || e == ENOMEM ? "over the limit of locked memory" : strerror(e));
}

static void cpu_decommit(lt_device *dev, lt_addr base, uint64_t bytes)
{
    lt__hostmem_decommit(&cpu_of(dev)->host.mem, lt_cpu_ptr(base), bytes);
}

static lt_status cpu_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err)
{
    (void)dev;
    (void)ptr;
    return lt__fail(err, LT_E_UNSUPPORTED, "cpu: %zu bytes need no pinning: no copy engine reads them", bytes);
}

static void cpu_unpin(lt_device *dev, void *ptr, size_t bytes)
{
    (void)dev;
    (void)ptr;
    (void)bytes;
}

static const lt_device_vt cpu_vt = {
    .close = cpu_close,
    .get_info = cpu_get_info,
    .get_stats = cpu_get_stats,
    .free_bytes = cpu_free_bytes,
    .reserve = cpu_reserve,
    .unreserve = cpu_unreserve,
    .commit = cpu_commit,
    .decommit = cpu_decommit,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    LT_HOSTDEV_VT_ROWS,
};

typedef struct cpu_options {
    uint32_t   threads;
    lt_cpu_isa isa;
    uint64_t   mem_bytes;
    bool       locked;
} cpu_options;

static lt_status cpu_option(void *user, const char *key, const char *value, lt_err *err)
{
    cpu_options *o = user;
    lt_status s = lt__hostdev_option(key, value, &o->threads, &o->isa, err);
    if (s != LT_E_NOT_FOUND)
        return s;
    if (!strcmp(key, "mem")) {
        if (!lt__parse_bytes(value, &o->mem_bytes) || !o->mem_bytes)
            return lt__fail(err, LT_E_INVALID, "mem=%s: expected a size such as 4G", value);
        return LT_OK;
    }
    if (!strcmp(key, "lock")) {
        if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
            return lt__fail(err, LT_E_INVALID, "lock=%s: expected 0 or 1", value);
        o->locked = value[0] == '1';
        return LT_OK;
    }
    return lt__fail(err, LT_E_INVALID, "cpu has no option '%s'; it has threads, isa, mem, lock", key);
}

static lt_status cpu_open(lt_ctx *ctx, const char *opts, lt_device **out, lt_err *err)
{
    lt__host_limits l;
    lt__host_limits_get(&l);
    cpu_options o = {.threads = l.cores, .isa = lt__cpu_isa_best(), .mem_bytes = UINT64_MAX};
    lt_status s = lt__spec_parse(opts, cpu_option, &o, err);
    if (s != LT_OK)
        return s;
    cpu_device *c = lt__zalloc(ctx, sizeof *c);
    if (!c)
        return lt__fail_oom(err, sizeof *c, "cpu device");
    lt__hostdev_init(&c->host, &cpu_vt, ctx, "cpu", o.isa, o.threads);
    c->mem_bytes = o.mem_bytes;
    c->locked = o.locked;
    *out = &c->host.base;
    return LT_OK;
}

const lt_backend lt__backend_cpu = {
    .name = "cpu",
    .help = "cpu[:threads=N,isa=ref|avx2|avx512,mem=SIZE,lock=0|1]  the host itself",
    .open = cpu_open,
};
