/* Cases users met elsewhere, about text. */
#include "text_common.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static char logged[1024];
static void note(void *user, lt_log_level level, const char *area, const char *text)
{
    (void)user;
    (void)area;
    if (level == LT_LOG_WARN)
        snprintf(logged, sizeof logged, "%s", text);
}

static toy *padded(const char *pre, const char *arch, uint64_t n, const char *a, const char *b)
{
    /* A vocabulary of the true size: the toy's own arrays are too small for it. */
    toy *v = toy_bpe(pre);
    v->d.arch = arch;
    toy_add(v, a, 3, 0);
    toy_add(v, b, 3, 0);
    char **tokens = calloc(n, sizeof *tokens);
    uint32_t *len = calloc(n, sizeof *len);
    int64_t *types = calloc(n, sizeof *types);
    for (uint64_t i = 0; i < n; i++) {
        if (i < v->d.n_tokens) {
            tokens[i] = strdup(v->tokens[i]);
        } else if (asprintf(&tokens[i], "pad%llu", (unsigned long long)i) < 0) {
            abort();
        }
        len[i] = (uint32_t)strlen(tokens[i]);
        types[i] = i < v->d.n_tokens ? v->types[i] : 1;
    }
    toy *w = toy_new("gpt2", pre);
    w->d.arch = arch;
    w->d.tokens = (const char *const *)tokens;
    w->d.token_len = len;
    w->d.types = types;
    w->d.n_tokens = w->d.n_types = n;
    toy_free(v);
    return w;
}

static void padded_free(toy *v)
{
    for (uint64_t i = 0; i < v->d.n_tokens; i++)
        free((char *)v->d.tokens[i]);
    free((void *)v->d.tokens);
    free((void *)v->d.token_len);
    free((void *)v->d.types);
    free(v);
}

/* Text 22: `tokenizer.ggml.pre` missing or "default": inferred where vocabulary and architecture
 * leave no doubt, with a warning; refused by name, never a crash or 10% more tokens, where not. */
static void text_22_missing_or_default_pre(void **state)
{
    (void)state;
    static const struct { const char *arch, *a, *b; uint64_t n; const char *kind; } rows[] = {
        {"llama", "<|begin_of_text|>", "<|eot_id|>", 128256, "bpe llama3"},
        {"qwen2", "<|im_start|>", "<|endoftext|>", 151936, "bpe qwen2"},
        {"qwen3", "<|im_start|>", "<|endoftext|>", 151936, "bpe qwen2"},
        {"llama", "[INST]", "[AVAILABLE_TOOLS]", 131072, "bpe tekken"},
        {"llama", "<|im_start|>", "<jupyter_start>", 49152, "bpe smollm"},
        {"phi3", "<|endoftext|>", "<|endofprompt|>", 200064, "bpe o200k"},
        {"llama", "<|im_start|>", "<|im_end|>", 32000, NULL},
        {"qwen2", "<|im_start|>", "<|endoftext|>", 300, NULL},
        {NULL, "<|begin_of_text|>", "<|eot_id|>", 128256, NULL},
    };
    static const char *const said[] = {NULL, "", "default"};
    lt_ctx_desc cd = lt_ctx_desc_default();
    lt_ctx *ctx;
    lt_err err;
    cd.log = note;
    assert_int_equal(lt_ctx_create(&cd, &ctx, &err), LT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < 3; k++) {
            toy *v = padded(said[k], rows[i].arch, rows[i].n, rows[i].a, rows[i].b);
            lt_tokenizer *tk;
            logged[0] = '\0';
            lt_status s = lt__tokenizer_build(ctx, &v->d, &tk, &err);
            if (rows[i].kind != NULL) {
                assert_int_equal(s, LT_OK);
                assert_string_equal(lt_tokenizer_kind(tk), rows[i].kind);
                assert_non_null(strstr(logged, "tokenizer.ggml.pre"));
                lt_tokens ids = {0};
                assert_int_equal(lt_tokenizer_encode(tk, "1234 a", 6, 0, &ids, &err), LT_OK);
                assert_int_equal(ids.n, 6);
                lt_tokens_clear(&ids);
            } else {
                assert_int_equal(s, LT_E_UNSUPPORTED);
                assert_non_null(strstr(err.text, "tokenizer.ggml.pre"));
                assert_string_equal(logged, "");
            }
            lt_tokenizer_destroy(tk);
            padded_free(v);
        }
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

/* SentencePiece has no split rule: "default" and a missing key are both right there, and silent. */
static void text_22_spm_needs_no_pre(void **state)
{
    (void)state;
    lt_ctx_desc cd = lt_ctx_desc_default();
    lt_ctx *ctx;
    lt_err err;
    cd.log = note;
    assert_int_equal(lt_ctx_create(&cd, &ctx, &err), LT_OK);
    static const char *const said[] = {NULL, "default", "viking"};
    for (size_t k = 0; k < 3; k++) {
        toy *v = toy_spm(true);
        lt_tokenizer *tk;
        v->d.pre = said[k];
        logged[0] = '\0';
        assert_int_equal(lt__tokenizer_build(ctx, &v->d, &tk, &err), LT_OK);
        assert_string_equal(logged, "");
        lt_tokenizer_destroy(tk);
        toy_free(v);
    }
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_22_missing_or_default_pre),
        cmocka_unit_test(text_22_spm_needs_no_pre),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
