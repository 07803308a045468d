/* rig.h - runs one op on every device and holds the results against each other and float64.
 *
 * The reference is cpu:isa=ref,threads=1. The others come from LT_CONFORMANCE_DEVICES, specs
 * separated by ';', by default every instruction set of this machine at 1, 2 and 3 threads,
 * and a simulated card. Data goes in and out by copies, so a device need not be the host.
 * LT_CONFORMANCE_PART=K/N: of the cases that compare devices every Nth, from the Kth on, for tools under which launches are slow. */
#ifndef LT_TESTS_RIG_H
#define LT_TESTS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "graph/half.h"

#define RIG_MAX_DEVICES 24
#define RIG_MEMORY (64u << 20)
#define RIG_DEFAULT                                                                                       \
    "cpu:isa=ref,threads=2;cpu:isa=ref,threads=3;cpu:isa=avx2,threads=1;cpu:isa=avx2,threads=2;"          \
    "cpu:isa=avx2,threads=3;cpu:isa=avx512,threads=1;cpu:isa=avx512,threads=2;cpu:isa=avx512,threads=3;"  \
    "sim:vram=256M"

typedef struct rig_device {
    char       spec[128];
    lt_device *dev;
    lt_queue  *q;
    lt_addr    base;
    uint64_t   used;
} rig_device;

typedef struct rig {
    lt_ctx    *ctx;
    rig_device device[RIG_MAX_DEVICES]; /* 0 is the reference */
    int        n;
    uint64_t   launches, compared, cases;
    unsigned   part, parts;
} rig;

static rig g_rig;

/* A launch whose view addresses are offsets into the buffers given beside it. src[0] NULL: src0
 * is the dst buffer, for ops in place. The whole dst buffer is compared, so that a write beside
 * the view shows. */
typedef struct rig_case {
    lt_op_args  args;
    const void *src[LT_OP_MAX_SRC];
    size_t      src_bytes[LT_OP_MAX_SRC];
    const void *dst; /* content before the launch */
    size_t      dst_bytes;
    bool        in_place; /* src1 is read where it lies in host memory, on devices that can */
} rig_case;

#define RIG_OK(x)                                                            \
    do {                                                                     \
        lt_err e_ = {0};                                                     \
        if ((x) != LT_OK)                                                    \
            fail_msg("%s", e_.text);                                         \
    } while (0)

static bool rig_open_device(rig_device *d, const char *spec, bool must)
{
    lt_err err = {0};
    snprintf(d->spec, sizeof d->spec, "%s", spec);
    lt_status s = lt_device_open(g_rig.ctx, spec, &d->dev, &err);
    if (s == LT_E_UNSUPPORTED && !must) {
        print_message("%s: not run here: %s\n", spec, err.text);
        return false;
    }
    if (s != LT_OK)
        fail_msg("%s: %s", spec, err.text);
    RIG_OK(lt_queue_create(d->dev, LT_QUEUE_COMPUTE, &d->q, &e_));
    RIG_OK(lt_device_reserve(d->dev, RIG_MEMORY, &d->base, &e_));
    RIG_OK(lt_device_commit(d->dev, d->base, RIG_MEMORY, &e_));
    return true;
}

static int rig_setup(void **state)
{
    (void)state;
    const char *list = getenv("LT_CONFORMANCE_DEVICES"), *part = getenv("LT_CONFORMANCE_PART");
    bool must = list != NULL;
    char copy[2048], *save = NULL;
    g_rig.part = g_rig.parts = 1;
    if (part && (sscanf(part, "%u/%u", &g_rig.part, &g_rig.parts) != 2 || !g_rig.part || g_rig.part > g_rig.parts))
        fail_msg("LT_CONFORMANCE_PART=%s: expected K/N, such as 1/8", part);
    RIG_OK(lt_ctx_create(NULL, &g_rig.ctx, &e_));
    rig_open_device(&g_rig.device[0], "cpu:isa=ref,threads=1", true);
    g_rig.n = 1;
    snprintf(copy, sizeof copy, "%s", list ? list : RIG_DEFAULT);
    for (char *spec = strtok_r(copy, ";", &save); spec; spec = strtok_r(NULL, ";", &save)) {
        assert_true(g_rig.n < RIG_MAX_DEVICES);
        g_rig.n += rig_open_device(&g_rig.device[g_rig.n], spec, must);
    }
    assert_true(g_rig.n > 1);
    return 0;
}

static int rig_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < g_rig.n; i++) {
        rig_device *d = &g_rig.device[i];
        lt_queue_destroy(d->q);
        lt_device_decommit(d->dev, d->base, RIG_MEMORY);
        lt_device_unreserve(d->dev, d->base, RIG_MEMORY);
        lt_device_close(d->dev);
    }
    lt_ctx_destroy(g_rig.ctx);
    char part[32] = "";
    if (g_rig.parts > 1)
        snprintf(part, sizeof part, ", part %u of %u", g_rig.part, g_rig.parts);
    print_message("%d devices%s, %llu launches, %llu outputs compared bit by bit\n", g_rig.n, part,
                  (unsigned long long)g_rig.launches, (unsigned long long)g_rig.compared);
    return 0;
}

/* How many devices, the reference among them, run the case that begins here: it alone where the case is of another part. */
static int rig_share(void) { return g_rig.cases++ % g_rig.parts == g_rig.part - 1 ? g_rig.n : 1; }

static lt_addr rig_place(rig_device *d, size_t bytes)
{
    lt_addr at = d->base + d->used;
    d->used += lt__round_up(bytes, 256);
    assert_true(d->used <= RIG_MEMORY);
    return at;
}

/* A page-locked copy of src1 at its device address; NULL: the device reads none in place. */
static void *rig_map(rig_device *d, const rig_case *c, size_t bytes, lt_addr *at)
{
    lt_device_info info;
    lt_device_get_info(d->dev, &info);
    if (!c->in_place || !info.maps_host)
        return NULL;
    void *host = aligned_alloc(4096, bytes);
    memcpy(host, c->src[1], c->src_bytes[1]);
    RIG_OK(lt_device_pin(d->dev, host, bytes, &e_));
    RIG_OK(lt_device_map_host(d->dev, host, bytes, at, &e_));
    return host;
}

/* Runs c on d; out gets the whole dst buffer. */
static void rig_run(rig_device *d, const rig_case *c, void *out)
{
    lt_op_args a = c->args;
    const char *why = "";
    d->used = 0;
    lt_addr dst = rig_place(d, c->dst_bytes), mapped = 0;
    size_t map_bytes = (size_t)lt__round_up(c->src_bytes[1], 4096);
    void *host = rig_map(d, c, map_bytes, &mapped);
    RIG_OK(lt_queue_copy_in(d->q, dst, c->dst, c->dst_bytes, &e_));
    a.dst.addr += dst;
    for (uint32_t i = 0; i < a.n_src; i++) {
        lt_addr at = dst;
        if (i == 1 && host) {
            at = mapped;
        } else if (c->src[i]) {
            at = rig_place(d, c->src_bytes[i]);
            RIG_OK(lt_queue_copy_in(d->q, at, c->src[i], c->src_bytes[i], &e_));
        }
        a.src[i].addr += at;
    }
    if (!lt__device_supports(d->dev, &a, &why))
        fail_msg("%s refuses %s: %s", d->spec, a.name, why);
    uint64_t scratch = lt__device_scratch_bytes(d->dev, &a);
    a.scratch = scratch ? rig_place(d, scratch) : 0;
    RIG_OK(lt__queue_launch(d->q, &a, &e_));
    RIG_OK(lt_queue_copy_out(d->q, out, dst, c->dst_bytes, &e_));
    RIG_OK(lt_queue_sync(d->q, &e_));
    if (host)
        lt_device_unpin(d->dev, host, map_bytes);
    free(host);
    g_rig.launches++;
}

static bool is_nan_bits(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }

/* Bit for bit; of two NaN the payload is free (docs/arithmetic.md). */
static void rig_same(const char *what, const char *spec, const lt_view *v, const void *want, const void *got,
                     size_t bytes)
{
    g_rig.compared += v->dtype == LT_DTYPE_F32 ? bytes / 4 : bytes;
    if (memcmp(want, got, bytes) == 0)
        return;
    if (v->dtype == LT_DTYPE_F32) {
        for (size_t i = 0; i < bytes / 4; i++) {
            uint32_t w = lt__load_u32((const char *)want + 4 * i), g = lt__load_u32((const char *)got + 4 * i);
            if (w != g && !(is_nan_bits(w) && is_nan_bits(g)))
                fail_msg("%s on %s: element %zu is %.9g (%08x), the reference has %.9g (%08x)", what, spec, i,
                         lt__bits_f32(g), g, lt__bits_f32(w), w);
        }
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        uint8_t w = ((const uint8_t *)want)[i], g = ((const uint8_t *)got)[i];
        if (w != g)
            fail_msg("%s on %s: byte %zu is %02x, the reference has %02x", what, spec, i, g, w);
    }
}

/* Reference result into `out`, and every other device bit-equal to it. */
static void rig_check(const rig_case *c, const char *what, void *out)
{
    void *got = malloc(c->dst_bytes);
    rig_run(&g_rig.device[0], c, out);
    for (int i = 1, end = rig_share(); i < end; i++) {
        rig_run(&g_rig.device[i], c, got);
        rig_same(what, g_rig.device[i].spec, &c->args.dst, out, got, c->dst_bytes);
    }
    free(got);
}

/* ---- views ---- */

static lt_view view(lt_dtype t, uint32_t ndim, int64_t d0, int64_t d1, int64_t d2)
{
    lt_view v = {.dtype = t, .ndim = ndim, .dim = {d0, d1, d2}};
    const lt_dtype_traits *traits = lt_dtype_get(t);
    v.stride[ndim - 1] = traits->block_bytes;
    for (uint32_t i = ndim - 1; i-- > 0;)
        v.stride[i] = i + 2 == ndim ? v.dim[i + 1] / traits->block_elems * traits->block_bytes
                                    : v.dim[i + 1] * v.stride[i + 1];
    return v;
}

static size_t view_bytes(const lt_view *v) /* from its first byte to its last */
{
    const lt_dtype_traits *t = lt_dtype_get(v->dtype);
    size_t bytes = (size_t)(v->dim[v->ndim - 1] / t->block_elems * t->block_bytes);
    for (uint32_t i = 0; i + 1 < v->ndim; i++)
        bytes += (size_t)((v->dim[i] - 1) * v->stride[i]);
    return bytes;
}

/* ---- random data ---- */

static uint64_t g_seed = 0x9e3779b97f4a7c15u;

static uint32_t rnd(void) /* xorshift64* */
{
    g_seed ^= g_seed >> 12, g_seed ^= g_seed << 25, g_seed ^= g_seed >> 27;
    return (uint32_t)(g_seed * 0x2545f4914f6cdd1du >> 32);
}
static uint32_t rnd_below(uint32_t n) { return rnd() % n; }
static inline double rnd_unit(void) { return (rnd() + 0.5) / 4294967296.0; }
static inline double rnd_normal(void) { return sqrt(-2 * log(rnd_unit())) * cos(6.283185307179586 * rnd_unit()); }

typedef enum data_kind {
    DATA_NORMAL, DATA_HEAVY, DATA_ZEROS, DATA_TINY, DATA_LARGE, DATA_WILD, DATA_KINDS
} data_kind;
static const char *const data_names[] = {"normal", "heavy-tailed", "with zeros", "tiny", "large", "wild"};

static inline float rnd_float(data_kind kind)
{
    static const float special[] = {0.0f, -0.0f, 1e-45f, -1e-40f, 1.1754944e-38f, 3.4e38f, -3.4e38f,
                                    INFINITY, -INFINITY, NAN, 65504.0f, 65520.0f, 88.7f, -87.3f, 1.0f};
    switch (kind) {
    case DATA_NORMAL: return (float)rnd_normal();
    case DATA_HEAVY:  return (float)(rnd_normal() * exp(2 * rnd_normal()));
    case DATA_ZEROS:  return rnd_below(3) ? (rnd() & 1 ? 0.0f : -0.0f) : (float)rnd_normal();
    case DATA_TINY:   return (float)(rnd_normal() * ldexp(1, -110 - (int)rnd_below(40)));
    case DATA_LARGE:  return (float)(rnd_normal() * ldexp(1, (int)rnd_below(120)));
    default:          return rnd_below(40) ? (float)(rnd_normal() * 4) : special[rnd_below(15)];
    }
}

static inline float *rnd_floats(size_t n, data_kind kind)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rnd_float(kind);
    return x;
}

/* ---- float64 ---- */

/* Normalised mean square error; elements that are not finite on either side make it infinite. */
static inline double nmse(const double *want, const float *got, size_t n)
{
    double err = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i]))
            return INFINITY;
        err += (got[i] - want[i]) * (got[i] - want[i]);
        energy += want[i] * want[i];
    }
    return energy > 0 ? err / energy : err > 0 ? INFINITY : 0;
}

static inline void assert_within(const char *what, double error, double bound)
{
    if (!(error <= bound))
        fail_msg("%s: NMSE %.3g against float64, the bound is %.3g", what, error, bound);
}

/* A planted bug must show: else the bound proves nothing. */
static inline void assert_caught(const char *bug, double error, double bound)
{
    print_message("planted: %-44s NMSE %.2g, %.2g times the bound\n", bug, error, error / bound);
    if (!(error > 10 * bound))
        fail_msg("planted bug \"%s\" gives NMSE %.3g, which the bound %.3g would let pass", bug, error, bound);
}

#endif
