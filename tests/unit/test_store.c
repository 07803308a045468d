/* Stores: every mode, offset, alignment and size gives the file's bytes, or a sentence. */
#include "memory_common.h"

#include <pthread.h>
#include <sys/resource.h>

#include "memory/store_window.h"

enum { FILE_BYTES = 5 * (1 << 20) + 12345 };

static char path[256];

static int make_file(void **state)
{
    (void)state;
    pattern_file(path, sizeof path, 1, FILE_BYTES);
    return 0;
}

static int drop_file(void **state)
{
    (void)state;
    return unlink(path);
}

static const lt_store_mode modes[] = {LT_STORE_AUTO, LT_STORE_MAPPED, LT_STORE_DIRECT, LT_STORE_PLAIN};

static void *aligned(void *base, size_t to, size_t plus)
{
    return (void *)(((uintptr_t)base + to - 1) / to * to + plus);
}

static void read_and_check(lt_store *s, uint64_t at, size_t n, size_t plus, char *buf)
{
    lt_err err;
    char *dst = aligned(buf, 4096, 4096 + plus);
    memset(dst - 16, 0xaa, n + 32);
    assert_ok(lt_store_read(s, 0, at, dst, n, &err), err);
    assert_int_equal(pattern_check(dst, 1, at, n), n);
    for (int i = 1; i <= 16; i++) { /* nothing beside what was asked for is touched */
        assert_int_equal((uint8_t)dst[-i], 0xaa);
        assert_int_equal((uint8_t)dst[n + i - 1], 0xaa);
    }
}

static void each_mode_reads_every_shape(void **state)
{
    (void)state;
    static const uint64_t offs[] = {0, 1, 32, 4095, 4096, 4097, 123456, (1 << 20) - 1, 3 << 20};
    static const size_t sizes[] = {1, 31, 4095, 4096, 4097, 8192, 65536, (1 << 20) + 1, 2 * (1 << 20) + 77};
    char *buf = malloc(FILE_BYTES + 65536);
    for (size_t m = 0; m < 4; m++)
        for (int no_uring = 0; no_uring < 2; no_uring++) {
            test_ctx t;
            test_ctx_open(&t);
            lt_err err;
            lt_store *s;
            uint32_t f;
            assert_ok(lt_store_create(t.ctx, modes[m], m == 0 ? 1 << 20 : 0, &s, &err), err);
            if (no_uring) lt__store_forbid_uring(s);
            assert_ok(lt_store_add_file(s, path, &f, &err), err);
            assert_int_equal(lt_store_file_bytes(s, f), FILE_BYTES);
            for (size_t i = 0; i < sizeof offs / sizeof *offs; i++)
                for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
                    read_and_check(s, offs[i], sizes[j], offs[i] % 4096, buf);      /* congruent */
                    read_and_check(s, offs[i], sizes[j], (offs[i] + 64) % 4096, buf); /* not */
                }
            read_and_check(s, 0, FILE_BYTES, 0, buf); /* up to the very end */
            read_and_check(s, FILE_BYTES - 5, 5, 1, buf);
            lt_store_stats st;
            lt_store_get_stats(s, &st);
            assert_true(st.reads >= 9 * 9 * 2 + 2);
            if (lt_store_mode_used(s) == LT_STORE_DIRECT) assert_true(st.direct_bytes >= st.bytes);
            lt_store_destroy(s);
            test_ctx_close(&t);
        }
    free(buf);
}

static void auto_mode_follows_cache_bytes(void **state)
{
    (void)state;
    test_ctx t;
    test_ctx_open(&t);
    lt_err err;
    lt_store *s;
    uint32_t f, g;
    assert_ok(lt_store_create(t.ctx, LT_STORE_AUTO, FILE_BYTES + 10, &s, &err), err);
    assert_ok(lt_store_add_file(s, path, &f, &err), err);
    assert_int_equal(lt_store_mode_used(s), LT_STORE_MAPPED);
    const uint8_t *p = lt_store_map(s, f, 77, 1000);
    assert_non_null(p);
    assert_null(lt_store_map(s, f, FILE_BYTES - 1, 2));
    assert_null(lt_store_map(s, f, UINT64_MAX, 2));
    assert_ok(lt_store_add_file(s, path, &g, &err), err); /* now they do not fit */
    assert_int_not_equal(lt_store_mode_used(s), LT_STORE_MAPPED);
    assert_int_equal(pattern_check(p, 1, 77, 1000), 1000); /* what was lent stays */
    assert_null(lt_store_map(s, g, 0, 1));
    lt_store_destroy(s);
    test_ctx_close(&t);
}

static void bad_spans_and_paths_are_sentences(void **state)
{
    (void)state;
    test_ctx t;
    test_ctx_open(&t);
    for (size_t m = 0; m < 4; m++) {
        lt_err err;
        lt_store *s;
        uint32_t f;
        char b[16];
        assert_ok(lt_store_create(t.ctx, modes[m], 0, &s, &err), err);
        assert_int_equal(lt_store_add_file(s, "/nonexistent/x.gguf", &f, &err), LT_E_NOT_FOUND);
        assert_non_null(strstr(err.text, "/nonexistent/x.gguf"));
        assert_int_equal(lt_store_add_file(s, "/", &f, &err), LT_E_INVALID);
        assert_ok(lt_store_add_file(s, path, &f, &err), err);
        assert_int_equal(lt_store_read(s, f, FILE_BYTES - 1, b, 2, &err), LT_E_INVALID);
        assert_non_null(strstr(err.text, path));
        assert_int_equal(lt_store_read(s, f, UINT64_MAX, b, 2, &err), LT_E_INVALID);
        assert_int_equal(lt_store_read(s, 7, 0, b, 2, &err), LT_E_INVALID);
        lt_store_destroy(s);
    }
    test_ctx_close(&t);
}

static void truncated_file_is_io_error(void **state)
{
    (void)state;
    for (size_t m = 0; m < 4; m++) {
        char p[256];
        pattern_file(p, sizeof p, 1, 100000);
        test_ctx t;
        test_ctx_open(&t);
        lt_err err;
        lt_store *s;
        uint32_t f;
        char *b = malloc(100000);
        assert_ok(lt_store_create(t.ctx, modes[m], 0, &s, &err), err);
        assert_ok(lt_store_add_file(s, p, &f, &err), err);
        assert_int_equal(truncate(p, 5000), 0);
        assert_int_equal(lt_store_read(s, f, 0, b, 100000, &err), LT_E_IO);
        assert_non_null(strstr(err.text, p));
        const void *map = &map;
        if (lt__store_file_mode(s, f) == LT_STORE_MAPPED)
            assert_int_equal(lt__store_map_checked(s, f, 0, 100000, &map, &err), LT_E_IO);
        lt_store_destroy(s);
        test_ctx_close(&t);
        free(b);
        unlink(p);
    }
}

/* After the size was looked at, before the disk is asked: the read itself comes up short. */
static void file_shrinking_under_a_read_is_io_error(void **state)
{
    (void)state;
    for (size_t m = 1; m < 4; m++) {
        char p[256];
        pattern_file(p, sizeof p, 1, 3 << 20);
        test_ctx t;
        test_ctx_open(&t);
        lt_err err;
        lt_store *s;
        uint32_t f;
        lt__window *w;
        char *b = malloc((3 << 20) + 4096);
        assert_ok(lt_store_create(t.ctx, modes[m], 0, &s, &err), err);
        assert_ok(lt_store_add_file(s, p, &f, &err), err);
        assert_ok(lt__window_create(s, &w, &err), err);
        lt__fetch r = {.file = f, .offset = 0, .bytes = 3 << 20, .dst = aligned(b, 4096, 0)};
        lt__window_queue(w, &r);
        assert_int_equal(truncate(p, (1 << 20) + 777), 0);
        assert_int_equal(lt__window_finish(w, &r, &err), LT_E_IO);
        assert_non_null(strstr(err.text, p));
        lt__window_destroy(w);
        lt_store_destroy(s);
        test_ctx_close(&t);
        free(b);
        unlink(p);
    }
}

static void nth_failing_read_is_reported_and_leaks_nothing(void **state)
{
    (void)state;
    char *buf = malloc(FILE_BYTES + 8192);
    for (size_t m = 1; m < 4; m++)
        for (int shift = 0; shift <= 64; shift += 64)
            for (long n = 1;; n++) {
                test_ctx t;
                test_ctx_open(&t);
                lt_err err;
                lt_store *s;
                uint32_t f;
                assert_ok(lt_store_create(t.ctx, modes[m], 0, &s, &err), err);
                assert_ok(lt_store_add_file(s, path, &f, &err), err);
                char *dst = aligned(buf, 4096, (size_t)shift);
                test_ctx_arm(&t, LT_FAULT_READ, n);
                lt_status st = lt_store_read(s, f, 0, dst, FILE_BYTES, &err);
                bool hit = atomic_load(&t.seen[LT_FAULT_READ]) >= n;
                test_ctx_arm(&t, LT_FAULT_READ, 0);
                if (hit) {
                    assert_int_equal(st, LT_E_IO);
                    assert_non_null(strstr(err.text, path));
                } else assert_ok(st, err);
                assert_ok(lt_store_read(s, f, 0, dst, FILE_BYTES, &err), err); /* the next one is right */
                assert_int_equal(pattern_check(dst, 1, 0, FILE_BYTES), FILE_BYTES);
                lt_store_destroy(s);
                test_ctx_close(&t);
                if (!hit) break;
            }
    free(buf);
}

static void nth_failing_allocation_leaks_nothing(void **state)
{
    (void)state;
    for (size_t m = 0; m < 4; m++)
        for (long n = 1;; n++) {
            test_ctx t;
            test_ctx_open(&t);
            test_ctx_arm(&t, LT_FAULT_HOST_ALLOC, n);
            lt_err err;
            lt_store *s = NULL;
            uint32_t f;
            static char b[10000];
            lt_status st = lt_store_create(t.ctx, modes[m], 1, &s, &err);
            if (st == LT_OK) st = lt_store_add_file(s, path, &f, &err);
            if (st == LT_OK) st = lt_store_read(s, f, 13, b, sizeof b, &err);
            bool hit = atomic_load(&t.seen[LT_FAULT_HOST_ALLOC]) >= n;
            if (st != LT_OK) assert_int_equal(st, LT_E_HOST_OOM);
            lt_store_destroy(s);
            test_ctx_close(&t);
            if (!hit) {
                assert_int_equal(st, LT_OK);
                break;
            }
        }
}

static void window_reads_ahead_across_borders(void **state)
{
    (void)state;
    test_ctx t;
    test_ctx_open(&t);
    lt_err err;
    lt_store *s;
    uint32_t f;
    assert_ok(lt_store_create(t.ctx, LT_STORE_DIRECT, 0, &s, &err), err);
    assert_ok(lt_store_add_file(s, path, &f, &err), err);
    lt__window *w;
    assert_ok(lt__window_create(s, &w, &err), err);
    enum { N = 20, EACH = 200000 };
    char *buf = malloc(N * (EACH + 3 * 4096));
    lt__fetch r[N];
    for (int i = 0; i < N; i++) {
        uint64_t off = (uint64_t)i * EACH;
        char *dst = aligned(buf + i * (EACH + 3 * 4096), 4096, off % 4096);
        r[i] = (lt__fetch){.file = f, .offset = off, .bytes = EACH, .dst = dst, .spill = true};
        lt__window_queue(w, &r[i]);
    }
    lt__window_pump(w);
    if (lt_store_mode_used(s) == LT_STORE_DIRECT) assert_true(r[LT__READ_DEPTH - 1].issued > 0);
    for (int i = N - 1; i >= 0; i--) { /* finishing in any order is fine */
        assert_ok(lt__window_finish(w, &r[i], &err), err);
        assert_int_equal(pattern_check(r[i].dst, 1, r[i].offset, EACH), EACH);
    }
    lt__window_queue(w, &r[0]); /* destroyed while in flight */
    lt__window_pump(w);
    lt__window_destroy(w);
    lt_store_destroy(s);
    test_ctx_close(&t);
    free(buf);
}

typedef struct reader_job { lt_store *s; unsigned seed; int bad; } reader_job;

static void *reader_thread(void *arg)
{
    reader_job *j = arg;
    char *b = malloc(300000);
    for (int i = 0; i < 30; i++) {
        uint64_t off = (uint64_t)rand_r(&j->seed) % (FILE_BYTES - 300000);
        size_t n = (size_t)rand_r(&j->seed) % 300000 + 1;
        if (lt_store_read(j->s, 0, off, b, n, NULL) != LT_OK || pattern_check(b, 1, off, n) != n) j->bad++;
    }
    free(b);
    return NULL;
}

static void several_threads_read_at_once(void **state)
{
    (void)state;
    for (size_t m = 1; m < 4; m++)
        for (int no_uring = 0; no_uring < 2; no_uring++) {
            test_ctx t;
            test_ctx_open(&t);
            lt_err err;
            lt_store *s;
            uint32_t f;
            assert_ok(lt_store_create(t.ctx, modes[m], 0, &s, &err), err);
            if (no_uring) lt__store_forbid_uring(s);
            assert_ok(lt_store_add_file(s, path, &f, &err), err);
            pthread_t th[4];
            reader_job job[4];
            for (unsigned i = 0; i < 4; i++) {
                job[i] = (reader_job){s, i + 1, 0};
                pthread_create(&th[i], NULL, reader_thread, &job[i]);
            }
            for (int i = 0; i < 4; i++) {
                pthread_join(th[i], NULL);
                assert_int_equal(job[i].bad, 0);
            }
            lt_store_destroy(s);
            test_ctx_close(&t);
        }
}

/* tmpfs refuses O_DIRECT on most kernels: still right, and said once at most. */
static void file_system_without_direct_falls_back(void **state)
{
    (void)state;
    char p[] = "/dev/shm/lt-test-XXXXXX";
    int fd = mkstemp(p);
    if (fd < 0) skip();
    char *b = malloc(100000);
    pattern_fill(b, 3, 0, 100000);
    assert_int_equal(write(fd, b, 100000), 100000);
    close(fd);
    test_ctx t;
    test_ctx_open(&t);
    lt_err err;
    lt_store *s;
    uint32_t f;
    assert_ok(lt_store_create(t.ctx, LT_STORE_DIRECT, 0, &s, &err), err);
    assert_ok(lt_store_add_file(s, p, &f, &err), err);
    for (int i = 0; i < 3; i++) {
        memset(b, 0, 100000);
        assert_ok(lt_store_read(s, f, 3, b, 99990, &err), err);
        assert_int_equal(pattern_check(b, 3, 3, 99990), 99990);
    }
    assert_int_equal(atomic_load(&t.warnings), lt_store_mode_used(s) == LT_STORE_PLAIN ? 1 : 0);
    lt_store_destroy(s);
    test_ctx_close(&t);
    unlink(p);
    free(b);
}

static void missing_uring_is_said_once(void **state)
{
    (void)state;
    test_ctx t;
    test_ctx_open(&t);
    lt_err err;
    lt_store *s;
    uint32_t f;
    char b[5000];
    assert_ok(lt_store_create(t.ctx, LT_STORE_DIRECT, 0, &s, &err), err);
    assert_ok(lt_store_add_file(s, path, &f, &err), err);
    if (lt_store_mode_used(s) != LT_STORE_DIRECT) {
        lt_store_destroy(s);
        test_ctx_close(&t);
        skip();
    }
    /* With no file descriptor left io_uring cannot be set up; the threads need none. */
    struct rlimit old, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){0, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    lt_status st = lt_store_read(s, f, 1, b, sizeof b, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_ok(st, err);
    assert_int_equal(pattern_check(b, 1, 1, sizeof b), sizeof b);
    assert_int_equal(atomic_load(&t.warnings), 1);
    assert_non_null(strstr(t.last_log, "io_uring"));
    lt_store_destroy(s);
    test_ctx_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_mode_reads_every_shape),
        cmocka_unit_test(auto_mode_follows_cache_bytes),
        cmocka_unit_test(bad_spans_and_paths_are_sentences),
        cmocka_unit_test(truncated_file_is_io_error),
        cmocka_unit_test(file_shrinking_under_a_read_is_io_error),
        cmocka_unit_test(nth_failing_read_is_reported_and_leaks_nothing),
        cmocka_unit_test(nth_failing_allocation_leaks_nothing),
        cmocka_unit_test(window_reads_ahead_across_borders),
        cmocka_unit_test(several_threads_read_at_once),
        cmocka_unit_test(file_system_without_direct_falls_back),
        cmocka_unit_test(missing_uring_is_said_once),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
