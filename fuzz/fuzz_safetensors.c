/* Any bytes as a safetensors file; and, without the length before it, as JSON: accepted exactly when the JSON library does. */
#include <jansson.h>

#include "format/json.h"
#include "fuzz_open.h"

static void same_verdict(const char *text, size_t n)
{
    lt_ctx *ctx;
    lt_err err = {0};
    lt__json j;
    json_error_t e;
    json_t *tree;

    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK) return;
    lt__json_init(&j, ctx, "x.json", text, n);
    lt__json_skip(&j);
    bool mine = lt__json_done(&j, &err) == LT_OK;
    tree = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    /* The library takes a NUL byte behind a number; no JSON has one. */
    if (memchr(text, 0, n)) {
        if (mine) __builtin_trap();
        mine = tree != NULL;
    }
    /* The library alone refuses numbers beyond its types; ours alone levels beyond 64. */
    bool excused = tree ? strstr(err.text, "nested deeper") != NULL : json_error_code(&e) == json_error_numeric_overflow;
    if (mine != (tree != NULL) && !excused) __builtin_trap();
    json_decref(tree);
    if (lt_ctx_host_bytes(ctx) != 0) __builtin_trap();
    lt_ctx_destroy(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n > 8) same_verdict((const char *)data + 8, n - 8);
    return fuzz_open(data, n, ".safetensors");
}
