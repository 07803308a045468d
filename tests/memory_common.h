/* memory_common.h - what the tests of store and residency share. */
#ifndef TESTS_MEMORY_COMMON_H
#define TESTS_MEMORY_COMMON_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "lowtide/store.h"

/* Any byte of any file can be checked without keeping the file in memory. */
static inline uint8_t pattern_byte(uint64_t seed, uint64_t at)
{
    uint64_t x = (at + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return (uint8_t)(x >> 56 ^ x >> 24);
}

static inline void pattern_fill(void *dst, uint64_t seed, uint64_t at, size_t n)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = pattern_byte(seed, at + i);
}

/* Offset of the first wrong byte, n when all are right. */
static inline size_t pattern_check(const void *src, uint64_t seed, uint64_t at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)src)[i] != pattern_byte(seed, at + i)) return i;
    return n;
}

static inline void temp_path(char *out, size_t n)
{
    const char *dir = getenv("LT_BUILD");
    snprintf(out, n, "%s/lt-test-XXXXXX", dir ? dir : "/tmp");
    int fd = mkstemp(out);
    assert_true(fd >= 0);
    close(fd);
}

static inline void pattern_file(char *path, size_t path_bytes, uint64_t seed, uint64_t bytes)
{
    temp_path(path, path_bytes);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    static uint8_t buf[1 << 16];
    for (uint64_t at = 0; at < bytes; at += sizeof buf) {
        size_t n = bytes - at < sizeof buf ? (size_t)(bytes - at) : sizeof buf;
        pattern_fill(buf, seed, at, n);
        assert_int_equal(fwrite(buf, 1, n, f), n);
    }
    assert_int_equal(fflush(f), 0);
    assert_int_equal(fsync(fileno(f)), 0); /* O_DIRECT reads see it either way; this keeps timing apart */
    fclose(f);
}

/* A context whose Nth call of one fault point fails, and which keeps what was logged. */
typedef struct test_ctx {
    lt_ctx *ctx;
    atomic_long seen[LT_FAULT_COUNT], fail_at; /* from 1; 0: never */
    atomic_int point;
    atomic_int warnings;
    char last_log[512];
} test_ctx;

static inline bool test_fault(void *user, lt_fault_point point)
{
    test_ctx *t = user;
    long n = atomic_fetch_add(&t->seen[point], 1) + 1;
    return (int)point == atomic_load(&t->point) && n == atomic_load(&t->fail_at);
}

static inline void test_log(void *user, lt_log_level level, const char *area, const char *text)
{
    test_ctx *t = user;
    if (level <= LT_LOG_WARN) {
        if (atomic_fetch_add(&t->warnings, 1) == 0)
            snprintf(t->last_log, sizeof t->last_log, "%s: %s", area, text);
        if (getenv("LT_TEST_VERBOSE")) fprintf(stderr, "%s: %s\n", area, text);
    }
}

static inline void test_ctx_open(test_ctx *t)
{
    memset(t, 0, sizeof *t);
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = test_fault;
    d.fault_user = t;
    d.log = test_log;
    d.log_user = t;
    lt_err err;
    assert_int_equal(lt_ctx_create(&d, &t->ctx, &err), LT_OK);
}

static inline void test_ctx_arm(test_ctx *t, lt_fault_point point, long n)
{
    for (int i = 0; i < LT_FAULT_COUNT; i++) atomic_store(&t->seen[i], 0);
    atomic_store(&t->point, (int)point);
    atomic_store(&t->fail_at, n);
}

static inline void test_ctx_close(test_ctx *t)
{
    uint64_t left = lt_ctx_host_bytes(t->ctx);
    lt_ctx_destroy(t->ctx);
    assert_int_equal(left, 0);
}

#define assert_ok(call, err)                                                             \
    do {                                                                                 \
        lt_status st_ = (call);                                                          \
        if (st_ != LT_OK) fail_msg("%s: %s: %s", #call, lt_status_name(st_), (err).text); \
    } while (0)

#endif
