/* golden.h - the manifest of expected logits, and the models it names. */
#ifndef LT_TESTS_GOLDEN_GOLDEN_H
#define LT_TESTS_GOLDEN_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "golden/exec.h"

#define DATA "tests/golden/"

static json_t *manifest;
static lt_ctx *ctx;
static char model_path[256];

static const char *text_of(const json_t *e, const char *key) { return json_string_value(json_object_get(e, key)); }

static const char *golden_build(void)
{
    const char *b = getenv("LT_BUILD");
    return b ? b : "build";
}

static bool sha256_is(const char *path, const char *want)
{
    char cmd[512], got[65] = "";
    snprintf(cmd, sizeof cmd, "sha256sum '%s'", path);
    FILE *p = popen(cmd, "r");
    bool ok = p && fread(got, 1, 64, p) == 64;
    while (p && fgetc(p) != EOF)
        ;
    if (p)
        pclose(p);
    return ok && strcmp(got, want) == 0;
}

/* Writes the model anew, byte for byte what the expected logits were computed from. */
static lt_model *golden_model(const json_t *e)
{
    char cmd[2048];
    size_t n = (size_t)snprintf(cmd, sizeof cmd, "'%s/tests/mkmodel'", golden_build());
    json_t *arg;
    size_t i;
    json_array_foreach(json_object_get(e, "args"), i, arg)
        n += (size_t)snprintf(cmd + n, sizeof cmd - n, " '%s'", json_string_value(arg));
    snprintf(cmd + n, sizeof cmd - n, " -o '%s'", model_path);
    if (system(cmd) != 0)
        fail_msg("%s failed", cmd);
    if (!sha256_is(model_path, text_of(e, "sha256")))
        fail_msg("%s: mkmodel no longer writes the bytes the expected logits are of; run make_golden.py",
                 text_of(e, "name"));
    lt_model *m;
    lt_err err;
    if (lt_model_open(ctx, model_path, &m, &err) != LT_OK)
        fail_msg("%s", err.text);
    return m;
}

static int32_t *ints_of(const json_t *a, size_t *n)
{
    *n = json_array_size(a);
    int32_t *v = malloc((*n + 1) * sizeof *v);
    for (size_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

/* What an entry stores: the logits of some columns, for the tokens from `first` on. */
typedef struct golden {
    int32_t *ids, *columns;
    size_t   n, n_columns, first, count;
    float   *want;
} golden;

static golden golden_load(const json_t *e)
{
    golden g = {.first = (size_t)json_integer_value(json_object_get(e, "first"))};
    g.ids = ints_of(json_object_get(e, "tokens"), &g.n);
    g.columns = ints_of(json_object_get(e, "columns"), &g.n_columns);
    g.count = (g.n - g.first) * g.n_columns;
    g.want = malloc(g.count * sizeof *g.want);
    FILE *f = fopen(DATA "logits.bin", "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)json_integer_value(json_object_get(e, "at")), SEEK_SET), 0);
    assert_int_equal(fread(g.want, sizeof *g.want, g.count, f), g.count);
    fclose(f);
    return g;
}

static void golden_free(golden *g)
{
    free(g->ids);
    free(g->columns);
    free(g->want);
}

/* Of all logits [n, vocab], those that are stored. */
static double golden_error(const golden *g, const float *logits, size_t vocab)
{
    float *some = malloc(g->count * sizeof *some);
    for (size_t i = 0; i < g->count; i++)
        some[i] = logits[(g->first + i / g->n_columns) * vocab + (size_t)g->columns[i % g->n_columns]];
    double d = exec_nmse(some, g->want, g->count);
    free(some);
    return d;
}

static double number(const json_t *e, const char *key) { return json_number_value(json_object_get(e, key)); }

static bool is_float(const json_t *e)
{
    const char *d = text_of(e, "dtype"); /* real models have none: quantised */
    return d && (strcmp(d, "F32") == 0 || strcmp(d, "F16") == 0 || strcmp(d, "BF16") == 0);
}

static int golden_setup(void **state)
{
    (void)state;
    json_error_t e;
    manifest = json_load_file(DATA "logits.json", 0, &e);
    snprintf(model_path, sizeof model_path, "%s/golden-%d.gguf", golden_build(), (int)getpid());
    if (!manifest)
        printf("%slogits.json: %s\n", DATA, e.text);
    return manifest && lt_ctx_create(NULL, &ctx, NULL) == LT_OK ? 0 : -1;
}

static int golden_teardown(void **state)
{
    (void)state;
    unlink(model_path);
    json_decref(manifest);
    uint64_t left = lt_ctx_host_bytes(ctx);
    lt_ctx_destroy(ctx);
    return left ? -1 : 0;
}

#endif
