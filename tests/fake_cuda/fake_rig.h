/* fake_rig.h - a CUDA device on the fake driver, for tests: opened fresh, closed with nothing left. */
#ifndef LT_TESTS_FAKE_RIG_H
#define LT_TESTS_FAKE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/images.h"
#include "base/mem.h"
#include "fake_cuda/fake_cuda.h"

#define OK(x) assert_int_equal((x), LT_OK)
#define MIB ((uint64_t)1 << 20)
#define SPEC "cuda:kernels=0," LT_CUDA_FAKE

static const fake_cuda_control *fake;

typedef struct rig {
    lt_ctx *ctx;
    lt_device *dev;
    lt_queue *q, *copy;
    lt_addr mem;
    lt_err err;
} rig;

/* The hook fails the nth time a point is reached. */
static struct {
    lt_fault_point point;
    _Atomic long left;
} g_hook;

static inline bool hook(void *user, lt_fault_point point)
{
    (void)user;
    return point == g_hook.point && atomic_fetch_sub(&g_hook.left, 1) == 1;
}

static inline void arm(lt_fault_point point, long nth)
{
    g_hook.point = point;
    atomic_store(&g_hook.left, nth);
}

static inline fake_cuda_counts counts(void)
{
    fake_cuda_counts c;
    fake->counts(&c);
    return c;
}

static inline void assert_nothing_left(void)
{
    fake_cuda_counts c = counts();
    if (c.violations)
        fail_msg("%llu violations, the first: %s", (unsigned long long)c.violations, c.violation);
    assert_int_equal(c.contexts, 0);
    assert_int_equal(c.streams, 0);
    assert_int_equal(c.events, 0);
    assert_int_equal(c.reservations, 0);
    assert_int_equal(c.handles, 0);
    assert_int_equal(c.mappings, 0);
    assert_int_equal(c.allocations, 0);
    assert_int_equal(c.registrations, 0);
    assert_int_equal(c.modules, 0);
    assert_int_equal(c.graphs, 0);
    assert_int_equal(c.held_bytes, 0);
    assert_int_equal(c.host_bytes, 0);
    assert_int_equal(c.advised_bytes, 0);
}

static inline lt_ctx *open_ctx(void)
{
    lt_ctx *ctx;
    lt_err err;
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = hook;
    g_hook.left = 0;
    OK(lt_ctx_create(&d, &ctx, &err));
    return ctx;
}

/* The fake is of the newest kind this build has kernels for, if it has any. */
static inline int last_arch(void)
{
    int last = 89;
    for (const int *a = lt__cuda_image_archs; *a; a++)
        last = *a;
    return last;
}

static inline void start_anew(void)
{
    fake->reset();
    fake->set_attribute(LT_CU_ATTR_CC_MAJOR, last_arch() / 10);
    fake->set_attribute(LT_CU_ATTR_CC_MINOR, last_arch() % 10);
    if (last_arch() == 90)
        fake->set_attribute(LT_CU_ATTR_SHARED_PER_BLOCK_OPTIN, 232448);
}

static inline rig open_rig(const char *spec)
{
    start_anew();
    rig r = {.ctx = open_ctx()};
    if (lt_device_open(r.ctx, spec, &r.dev, &r.err) != LT_OK)
        fail_msg("%s", r.err.text);
    OK(lt_queue_create(r.dev, LT_QUEUE_COMPUTE, &r.q, &r.err));
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &r.copy, &r.err));
    OK(lt_device_reserve(r.dev, 256 * MIB, &r.mem, &r.err));
    return r;
}

static inline void close_rig(rig *r)
{
    lt_queue_destroy(r->q);
    lt_queue_destroy(r->copy);
    if (r->mem)
        lt_device_unreserve(r->dev, r->mem, 256 * MIB);
    lt_device_close(r->dev);
    assert_int_equal(lt_ctx_host_bytes(r->ctx), 0);
    lt_ctx_destroy(r->ctx);
    assert_nothing_left();
}

/* Ours and the driver's numbers of what is on the card and on the host are the same. */
static inline uint64_t held(const rig *r)
{
    lt_device_stats st;
    lt_device_get_stats(r->dev, &st);
    assert_int_equal(st.committed_bytes, counts().held_bytes);
    assert_int_equal(st.host_bytes, counts().host_bytes);
    return st.committed_bytes;
}

static inline const fake_cuda_control *open_fake(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *p = library ? dlsym(library, "fake_cuda") : NULL;
    if (!p) {
        fprintf(stderr, "no fake driver: %s\n", dlerror());
        return NULL;
    }
    fake_cuda_control_fn *get;
    memcpy(&get, &p, sizeof get);
    return get();
}

static inline int run_on_fake(const struct CMUnitTest *tests, size_t n, const char *name)
{
    fake = open_fake(LT_CUDA_FAKE_FILE);
    if (!fake)
        return 1;
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

#endif
