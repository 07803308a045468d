/* The vocabulary: allocation accounting, faults, sizes in words, spec strings, whole files. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/host.h"
#include "base/mem.h"

typedef struct nth { int left; } nth;

static bool fail_nth(void *user, lt_fault_point p)
{
    nth *f = user;
    return p == LT_FAULT_HOST_ALLOC && --f->left == 0;
}

static void accounting_is_exact(void **state)
{
    (void)state;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    char *a = lt__alloc(ctx, 100), *b = lt__zalloc(ctx, 50);
    assert_int_equal(lt_ctx_host_bytes(ctx), 150);
    a = lt__realloc(ctx, a, 100, 300);
    assert_int_equal(lt_ctx_host_bytes(ctx), 350);
    lt__free(ctx, a, 300);
    lt__free(ctx, b, 50);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    assert_int_equal(lt_ctx_host_peak_bytes(ctx), 350);
    assert_null(lt__alloc_array(ctx, SIZE_MAX / 2, 3));
    lt_ctx_destroy(ctx);
}

static void nth_allocation_fails_and_grow_keeps(void **state)
{
    (void)state;
    nth f = {3};
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = fail_nth;
    d.fault_user = &f;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(&d, &ctx, NULL), LT_OK);
    int *v = NULL;
    size_t cap = 0;
    assert_int_equal(lt__grow(ctx, (void **)&v, &cap, 4, sizeof *v, NULL), LT_OK);
    v[3] = 7;
    assert_int_equal(lt__grow(ctx, (void **)&v, &cap, 100, sizeof *v, NULL), LT_OK);
    assert_int_equal(v[3], 7);
    assert_int_equal(v[99], 0);
    size_t before = cap;
    lt_err err;
    assert_int_equal(lt__grow(ctx, (void **)&v, &cap, 10000, sizeof *v, &err), LT_E_HOST_OOM);
    assert_non_null(strstr(err.text, "out of host memory"));
    assert_int_equal(cap, before);
    assert_int_equal(v[3], 7);
    lt__free(ctx, v, cap * sizeof *v);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

static void sizes_in_words(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t bytes; } good[] = {
        {"0", 0}, {"100000", 100000}, {"4G", 4ull << 30}, {"1.5GiB", 3ull << 29}, {"512M", 512ull << 20},
        {"64k", 65536}, {"2TB", 2ull << 40}, {"12B", 12},
    };
    static const char *const bad[] = {"", "G", "-1", "4X", "4GG", "4 G", "nan", "inf", "1e30", "9999999T", "4GiBs"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1;
        assert_true(lt__parse_bytes(good[i].text, &v));
        assert_int_equal(v, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v;
        if (lt__parse_bytes(bad[i], &v))
            fail_msg("'%s' was taken", bad[i]);
    }
    char buf[24];
    assert_string_equal(lt__format_bytes(3ull << 29, buf, sizeof buf), "1.50 GiB");
    assert_string_equal(lt__format_bytes(999, buf, sizeof buf), "999 B");
}

static lt_status collect(void *user, const char *key, const char *value, lt_err *err)
{
    if (strcmp(key, "bad") == 0)
        return lt__fail(err, LT_E_INVALID, "unknown key '%s'", key);
    strcat(strcat(strcat(strcat((char *)user, key), "="), value), ";");
    return LT_OK;
}

static void specs(void **state)
{
    (void)state;
    char got[128] = "";
    assert_int_equal(lt__spec_parse("vram=4G,h2d=12G,fail=copy:3", collect, got, NULL), LT_OK);
    assert_string_equal(got, "vram=4G;h2d=12G;fail=copy:3;");
    lt_err err;
    static const char *const bad[] = {"x", "=1", "a=1,", "a=1,,b=2", "bad=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(lt__spec_parse(bad[i], collect, got, &err), LT_E_INVALID);
    assert_int_equal(lt__spec_parse("", collect, got, NULL), LT_OK);
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void files_appear_whole(void **state)
{
    (void)state;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    char dir[] = "/tmp/lt-base-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/out", dir);
    lt__outfile *f;
    assert_int_equal(lt__outfile_open(ctx, path, &f, NULL), LT_OK);
    assert_int_equal(lt__outfile_write(f, "half", 4, NULL), LT_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    lt__outfile_abandon(f);
    assert_int_equal(count_files(dir), 0);
    assert_int_equal(lt__outfile_open(ctx, path, &f, NULL), LT_OK);
    assert_int_equal(lt__outfile_write(f, "whole", 5, NULL), LT_OK);
    assert_int_equal(lt__outfile_commit(f, NULL), LT_OK);
    assert_int_equal(count_files(dir), 1);
    assert_int_equal(access(path, R_OK), 0);
    lt_err err;
    assert_int_equal(lt__outfile_open(ctx, "/nonexistent/folder/file", &f, &err), LT_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/folder/file"));
    unlink(path);
    rmdir(dir);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

static void limits_are_sane(void **state)
{
    (void)state;
    lt__host_limits l;
    lt__host_limits_get(&l);
    assert_true(l.ram_bytes >= 64ull << 20);
    assert_true(l.available_bytes > 0 && l.available_bytes <= l.ram_bytes);
    assert_true(l.cores >= 1 && l.cores <= 4096);
    assert_true(lt__host_rss_peak() >= lt__host_rss() / 2 && lt__host_rss() > 100000);
}

static void every_status_has_name_and_text(void **state)
{
    (void)state;
    for (int s = 0; s >= LT_E_NOT_FOUND; s--) {
        assert_string_not_equal(lt_status_name((lt_status)s), "LT_E_UNKNOWN");
        assert_true(strlen(lt_status_text((lt_status)s)) > 3);
    }
    assert_string_equal(lt_status_name((lt_status)-999), "LT_E_UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accounting_is_exact),   cmocka_unit_test(nth_allocation_fails_and_grow_keeps),
        cmocka_unit_test(sizes_in_words),        cmocka_unit_test(specs),
        cmocka_unit_test(files_appear_whole),    cmocka_unit_test(limits_are_sane),
        cmocka_unit_test(every_status_has_name_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
