/* A card of any size, made of host memory that only copies can reach.
 *
 * Its addresses are host pointers moved to where no pointer is valid, so code that forgets a copy
 * crashes at the spot; ranges are checked at each copy and launch; what is committed is filled
 * with 0xFF, NaN as f32 and f16, so that reading what nobody wrote shows. */
#include "backend/cpu/hostdev.h"
#include "backend/sim/card.h"
#include "base/host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Outside both halves of the canonical address space, with 4 and with 5 page table levels; a
 * multiple of every alignment one could ask for. */
#define SIM_BIAS ((uint64_t)0x5100000000000000)
#define SIM_MAP_BIAS ((uint64_t)0x5200000000000000) /* of host memory read in place; as outside, and above the other */
#define SIM_DEFAULT_VRAM ((uint64_t)4 << 30)

typedef struct sim_span { struct sim_span *next; uintptr_t at; size_t bytes; } sim_span;

typedef struct sim_device {
    lt_hostdev host; /* first */
    pthread_mutex_t pin_lock;
    sim_span  *pins; /* what may be read in place */
    uint64_t   vram_bytes, fixed_bytes;
    lt_simcard *card; /* NULL: a card of its own */
    pthread_mutex_t card_lock; /* commit and give-back of a shared card; this and the next two */
    uint64_t   keep, kept; /* bytes of the card given back here but not there, at most and now */
    bool       armed[LT_FAULT_COUNT]; /* faults of the context that this device set */
} sim_device;

static sim_device *sim_of(const lt_device *dev)
{
    return (sim_device *)dev;
}

static uint8_t *pointer_of(lt_addr a)
{
    return (uint8_t *)(uintptr_t)(a - SIM_BIAS);
}

static void sim_close(lt_device *dev)
{
    sim_device *m = sim_of(dev);
    lt_ctx *ctx = dev->ctx;
    for (int i = 0; i < LT_FAULT_COUNT; i++)
        if (m->armed[i])
            lt__fault_at(ctx, (lt_fault_point)i, 0);
    lt__hostdev_deinit(&m->host);
    lt__simcard_close(m->card);
    while (m->pins) {
        sim_span *p = m->pins;
        m->pins = p->next;
        lt__log(ctx, LT_LOG_WARN, "sim", "%zu bytes of host memory were never unpinned", p->bytes);
        lt__free(ctx, p, sizeof *p);
    }
    pthread_mutex_destroy(&m->pin_lock);
    pthread_mutex_destroy(&m->card_lock);
    lt__free(ctx, m, sizeof *m);
}

/* What others took of a shared card counts; what is ours is on record there too. */
static uint64_t sim_free_bytes(const lt_device *dev)
{
    const sim_device *m = sim_of(dev);
    uint64_t committed, peak;
    if (m->card)
        return lt__round_down(lt__simcard_free(m->card), LT_HOSTMEM_GRANULE);
    lt__hostmem_usage((lt_hostmem *)&m->host.mem, &committed, &peak);
    return m->vram_bytes - m->fixed_bytes - committed;
}

static void sim_get_info(const lt_device *dev, lt_device_info *out)
{
    const sim_device *m = sim_of(dev);
    char size[24];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "sim: %s, %u threads, %s%s", lt__format_bytes(m->vram_bytes, size, sizeof size),
             m->host.threads, lt__cpu_isa_name(m->host.isa), m->host.clock.virt ? ", virtual clock" : "");
    snprintf(out->kind, sizeof out->kind, "sim");
    snprintf(out->memory_mode, sizeof out->memory_mode, "device");
    if (m->card)
        lt__simcard_id(m->card, out->id, sizeof out->id);
    out->total_bytes = m->vram_bytes;
    out->fixed_bytes = m->fixed_bytes;
    out->free_bytes = sim_free_bytes(dev);
    out->commit_bytes = LT_HOSTMEM_GRANULE;
    out->align_bytes = 256; /* as cards have it */
    out->memlock = true;
    out->maps_host = true;
    out->virtual_clock = m->host.clock.virt;
    out->compute_threads = m->host.threads;
    snprintf(out->isa, sizeof out->isa, "%s", lt__cpu_isa_name(m->host.isa));
    out->link_rate = (double)m->host.clock.rate[LT_COPY_H2D];
    out->compute_rate = (double)m->host.clock.compute_rate;
}

static void sim_get_stats(const lt_device *dev, lt_device_stats *out)
{
    lt__hostdev_stats(&sim_of(dev)->host, out);
}

static lt_status sim_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err)
{
    uint8_t *p = NULL;
    lt_status s = lt__hostmem_reserve(&sim_of(dev)->host.mem, bytes, &p, err);
    if (s == LT_OK)
        *out = (lt_addr)(uintptr_t)p + SIM_BIAS;
    return s;
}


static lt_status sim_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err)
{
    sim_device *m = sim_of(dev);
    uint64_t limit = m->vram_bytes - m->fixed_bytes;
    if (lt__hostdev_fault(&m->host, LT_FAULT_COMMIT))
        return lt__fail(err, LT_E_DEVICE_OOM, "sim: commit of %" PRIu64 " bytes failed: fault injected", bytes);
    /* The fill below touches every page: better refused here than killed there. */
    lt__host_limits l;
    lt__host_limits_get(&l);
    if (m->host.mem.poisoned && bytes <= limit && bytes > l.available_bytes)
        return lt__fail(err, LT_E_HOST_OOM,
                        "sim: commit of %" PRIu64 " bytes of simulated memory, but the host has only %" PRIu64 " available",
                        bytes, l.available_bytes);
    pthread_mutex_lock(&m->card_lock);
    uint64_t free_bytes = 0, own = lt__min_u64(bytes, m->kept);
    lt_status s = LT_OK;
    if (m->card && bytes <= limit && !lt__simcard_take(m->card, bytes - own, &free_bytes))
        s = lt__fail(err, LT_E_DEVICE_OOM, "sim: out of memory: %" PRIu64 " bytes wanted, %" PRIu64 " free of a shared card",
                     bytes, free_bytes + own);
    if (s == LT_OK) {
        s = lt__hostmem_commit(&m->host.mem, pointer_of(base), bytes, limit, err);
        if (s == LT_OK)
            m->kept -= own;
        else if (m->card && bytes <= limit)
            lt__simcard_give(m->card, bytes - own);
    }
    pthread_mutex_unlock(&m->card_lock);
    return s;
}

static void sim_keep(lt_device *dev, uint64_t bytes)
{
    sim_device *m = sim_of(dev);
    pthread_mutex_lock(&m->card_lock);
    m->keep = m->card ? bytes : 0;
    if (m->kept > m->keep) {
        lt__simcard_give(m->card, m->kept - m->keep);
        m->kept = m->keep;
    }
    pthread_mutex_unlock(&m->card_lock);
}

/* Whatever the call gave back, by what is committed before and after it. */
static uint64_t committed_now(sim_device *m)
{
    uint64_t committed, peak;
    lt__hostmem_usage(&m->host.mem, &committed, &peak);
    return committed;
}

static void give_back(sim_device *m, lt_addr base, uint64_t bytes, void (*call)(lt_hostmem *, uint8_t *, uint64_t))
{
    pthread_mutex_lock(&m->card_lock);
    uint64_t before = committed_now(m);
    call(&m->host.mem, pointer_of(base), bytes);
    if (m->card) {
        uint64_t bytes_back = before - committed_now(m), stay = lt__min_u64(bytes_back, m->keep - m->kept);
        m->kept += stay;
        lt__simcard_give(m->card, bytes_back - stay);
    }
    pthread_mutex_unlock(&m->card_lock);
}

static void sim_unreserve(lt_device *dev, lt_addr base, uint64_t bytes)
{
    give_back(sim_of(dev), base, bytes, lt__hostmem_unreserve);
}

static void sim_decommit(lt_device *dev, lt_addr base, uint64_t bytes)
{
    give_back(sim_of(dev), base, bytes, lt__hostmem_decommit);
}

/* Really locked, so that RLIMIT_MEMLOCK refuses here as it does with a card. */
static lt_status lock_host(sim_device *m, void *ptr, size_t bytes, lt_err *err)
{
    if (lt__hostdev_fault(&m->host, LT_FAULT_PIN))
        return lt__fail(err, LT_E_HOST_OOM, "sim: pinning %zu bytes failed: fault injected", bytes);
    if (mlock(ptr, bytes)) {
        int e = errno;
        lt__host_limits l;
        lt__host_limits_get(&l);
        return lt__fail_native(err, LT_E_HOST_OOM, e,
                               "sim: the system refuses to pin %zu bytes (RLIMIT_MEMLOCK is %" PRIu64 ")", bytes,
                               l.memlock_bytes);
    }
    return LT_OK;
}

static lt_status sim_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err)
{
    sim_device *m = sim_of(dev);
    sim_span *p = lt__zalloc(dev->ctx, sizeof *p);
    lt_status s = p ? lock_host(m, ptr, bytes, err) : lt__fail_oom(err, sizeof *p, "a pinned range");
    if (s != LT_OK) {
        lt__free(dev->ctx, p, sizeof *p);
        return s;
    }
    pthread_mutex_lock(&m->pin_lock);
    *p = (sim_span){.next = m->pins, .at = (uintptr_t)ptr, .bytes = bytes};
    m->pins = p;
    pthread_mutex_unlock(&m->pin_lock);
    return LT_OK;
}

static void sim_unpin(lt_device *dev, void *ptr, size_t bytes)
{
    sim_device *m = sim_of(dev);
    pthread_mutex_lock(&m->pin_lock);
    sim_span **at = &m->pins;
    while (*at && ((*at)->at != (uintptr_t)ptr || (*at)->bytes != bytes))
        at = &(*at)->next;
    sim_span *p = *at;
    if (p)
        *at = p->next;
    pthread_mutex_unlock(&m->pin_lock);
    if (!p) {
        lt__log(dev->ctx, LT_LOG_ERROR, "sim", "unpin of %zu bytes that were not pinned so; ignored", bytes);
        return;
    }
    munlock(ptr, bytes);
    lt__free(dev->ctx, p, sizeof *p);
}

/* Whole, by one pinned range or by several side by side. */
static bool sim_maps(lt_hostdev *d, const void *ptr, uint64_t bytes)
{
    sim_device *m = (sim_device *)d;
    uintptr_t at = (uintptr_t)ptr, end = at + bytes;
    bool found = end >= at;
    pthread_mutex_lock(&m->pin_lock);
    while (found && at < end) {
        const sim_span *p = m->pins;
        while (p && (at < p->at || at - p->at >= p->bytes))
            p = p->next;
        found = p != NULL;
        at = p ? p->at + p->bytes : at;
    }
    pthread_mutex_unlock(&m->pin_lock);
    return found;
}

static lt_status sim_map_host(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err)
{
    if (!sim_maps(&sim_of(dev)->host, ptr, bytes))
        return lt__fail(err, LT_E_INVALID, "sim: %zu bytes to read in place are not, or not wholly, pinned", bytes);
    *out = (lt_addr)(uintptr_t)ptr + SIM_MAP_BIAS;
    return LT_OK;
}

static const lt_device_vt sim_vt = {
    .close = sim_close,
    .get_info = sim_get_info,
    .get_stats = sim_get_stats,
    .free_bytes = sim_free_bytes,
    .reserve = sim_reserve,
    .unreserve = sim_unreserve,
    .commit = sim_commit,
    .decommit = sim_decommit,
    .keep = sim_keep,
    .pin = sim_pin,
    .unpin = sim_unpin,
    .map_host = sim_map_host,
    LT_HOSTDEV_VT_ROWS,
};

typedef struct sim_options {
    uint32_t   threads;
    lt_cpu_isa isa;
    uint64_t   vram, fixed, h2d, d2h, compute, latency_ns;
    uint64_t   fail[LT_FAULT_COUNT];
    bool       virt, poison;
    char       card[256];
} sim_options;

static bool parse_time(const char *s, uint64_t *ns)
{
    static const struct {
        const char *unit;
        double      ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    if (*s < '0' || *s > '9')
        return false;
    char *end;
    double v = strtod(s, &end);
    if (v == 0 && !*end) {
        *ns = 0;
        return true;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].unit) && v * units[i].ns < 1e18) {
            *ns = (uint64_t)(v * units[i].ns);
            return true;
        }
    return false;
}

/* Where a fault of the spec is counted: in the device itself, or in the context, whose reads and
 * allocations no device sees. */
static const struct fault_name {
    const char    *name;
    lt_fault_point point;
    bool           of_ctx;
} fault_names[] = {{"commit", LT_FAULT_COMMIT, false}, {"copy", LT_FAULT_COPY, false}, {"launch", LT_FAULT_LAUNCH, false},
                   {"pin", LT_FAULT_PIN, false},       {"read", LT_FAULT_READ, true},  {"map", LT_FAULT_MAP, true},
                   {"alloc", LT_FAULT_HOST_ALLOC, true}};
#define FAULT_NAMES (sizeof fault_names / sizeof *fault_names)

static lt_status parse_fail(const char *value, uint64_t *fail, lt_err *err)
{
    const char *colon = strchr(value, ':');
    for (size_t i = 0; colon && i < FAULT_NAMES; i++) {
        size_t len = strlen(fault_names[i].name);
        if ((size_t)(colon - value) != len || strncmp(value, fault_names[i].name, len))
            continue;
        char *end;
        errno = 0;
        unsigned long long n = strtoull(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end || errno || n < 1)
            return lt__fail(err, LT_E_INVALID, "fail=%s: the count behind ':' starts at 1", value);
        fail[fault_names[i].point] = n;
        return LT_OK;
    }
    return lt__fail(err, LT_E_INVALID, "fail=%s: expected POINT:N with POINT one of commit, copy, launch, pin, read, map, alloc",
                    value);
}

static lt_status sim_option(void *user, const char *key, const char *value, lt_err *err)
{
    sim_options *o = user;
    const struct {
        const char *key;
        uint64_t   *out;
        bool        zero;
    } sizes[] = {{"vram", &o->vram, false}, {"fixed", &o->fixed, true},      {"h2d", &o->h2d, false},
                 {"d2h", &o->d2h, false},   {"compute", &o->compute, false}};
    lt_status s = lt__hostdev_option(key, value, &o->threads, &o->isa, err);
    if (s != LT_E_NOT_FOUND)
        return s;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(key, sizes[i].key)) {
            if (!lt__parse_bytes(value, sizes[i].out) || (!*sizes[i].out && !sizes[i].zero))
                return lt__fail(err, LT_E_INVALID, "%s=%s: expected %s such as 4G", key, value,
                                i < 2 ? "a size" : "bytes a second");
            return LT_OK;
        }
    if (!strcmp(key, "latency")) {
        if (!parse_time(value, &o->latency_ns))
            return lt__fail(err, LT_E_INVALID, "latency=%s: expected a time such as 10us", value);
        return LT_OK;
    }
    if (!strcmp(key, "clock")) {
        o->virt = !strcmp(value, "virtual");
        if (!o->virt && strcmp(value, "real"))
            return lt__fail(err, LT_E_INVALID, "clock=%s: expected real or virtual", value);
        return LT_OK;
    }
    if (!strcmp(key, "poison")) {
        o->poison = !strcmp(value, "on");
        if (!o->poison && strcmp(value, "off"))
            return lt__fail(err, LT_E_INVALID, "poison=%s: expected on or off", value);
        return LT_OK;
    }
    if (!strcmp(key, "card")) {
        if (!*value || strlen(value) >= sizeof o->card)
            return lt__fail(err, LT_E_INVALID, "card=%s: expected the path of a file, below %zu characters", value, sizeof o->card);
        memcpy(o->card, value, strlen(value) + 1);
        return LT_OK;
    }
    if (!strcmp(key, "fail"))
        return parse_fail(value, o->fail, err);
    return lt__fail(err, LT_E_INVALID,
                    "sim has no option '%s'; it has vram, fixed, h2d, d2h, latency, clock, compute, threads, isa, "
                    "poison, card, fail",
                    key);
}

static void arm_faults(sim_device *m, const uint64_t *fail)
{
    for (size_t i = 0; i < FAULT_NAMES; i++) {
        lt_fault_point p = fault_names[i].point;
        if (!fault_names[i].of_ctx)
            m->host.fail_in[p] = fail[p];
        else if (fail[p])
            lt__fault_at(m->host.base.ctx, p, fail[p]);
        m->armed[p] = fault_names[i].of_ctx && fail[p];
    }
}

static lt_status sim_open(lt_ctx *ctx, const char *opts, lt_device **out, lt_err *err)
{
    lt__host_limits l;
    lt__host_limits_get(&l);
    sim_options o = {.threads = l.cores, .isa = lt__cpu_isa_best(), .vram = SIM_DEFAULT_VRAM, .poison = true};
    lt_status s = lt__spec_parse(opts, sim_option, &o, err);
    if (s != LT_OK)
        return s;
    if (o.fixed > o.vram)
        return lt__fail(err, LT_E_INVALID, "sim: fixed=%" PRIu64 " is more than vram=%" PRIu64, o.fixed, o.vram);
    if (o.compute && !o.virt)
        return lt__fail(err, LT_E_INVALID, "sim: compute=%" PRIu64 " needs clock=virtual; real compute takes what it takes",
                        o.compute);
    sim_device *m = lt__zalloc(ctx, sizeof *m);
    if (!m)
        return lt__fail_oom(err, sizeof *m, "sim device");
    lt__hostdev_init(&m->host, &sim_vt, ctx, "sim", o.isa, o.threads);
    m->host.bias = SIM_BIAS;
    m->host.map_bias = SIM_MAP_BIAS;
    m->host.maps = sim_maps;
    m->host.apart = true;
    m->host.mem.poisoned = o.poison;
    m->host.mem.poison = 0xFF;
    m->host.clock.virt = o.virt;
    m->host.clock.rate[LT_COPY_H2D] = o.h2d;
    m->host.clock.rate[LT_COPY_D2H] = o.d2h;
    m->host.clock.latency_ns = o.latency_ns;
    m->host.clock.compute_rate = o.compute;
    arm_faults(m, o.fail);
    m->vram_bytes = o.vram;
    m->fixed_bytes = o.fixed;
    pthread_mutex_init(&m->card_lock, NULL);
    pthread_mutex_init(&m->pin_lock, NULL);
    uint64_t free_bytes = 0;
    if (*o.card)
        s = lt__simcard_open(ctx, o.card, o.vram, &m->card, err);
    if (s == LT_OK && m->card && o.fixed && !lt__simcard_take(m->card, o.fixed, &free_bytes))
        s = lt__fail(err, LT_E_DEVICE_OOM, "sim: fixed=%" PRIu64 ", but only %" PRIu64 " are free of card=%s", o.fixed, free_bytes, o.card);
    if (s != LT_OK) {
        sim_close(&m->host.base);
        return s;
    }
    *out = &m->host.base;
    return LT_OK;
}

static bool sim_identify(lt_ctx *ctx, const char *opts, char *id, size_t bytes)
{
    (void)ctx;
    sim_options o = {0};
    return lt__spec_parse(opts, sim_option, &o, NULL) == LT_OK && *o.card && lt__simcard_id_of(o.card, id, bytes);
}

const lt_backend lt__backend_sim = {
    .name = "sim",
    .help = "sim[:vram=SIZE,h2d=RATE,d2h=RATE,latency=TIME,clock=real|virtual,...]  a card made of host memory",
    .open = sim_open,
    .identify = sim_identify,
};
