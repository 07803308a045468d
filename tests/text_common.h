/* text_common.h - small vocabularies in memory for the tests of text. */
#ifndef LT_TESTS_TEXT_COMMON_H
#define LT_TESTS_TEXT_COMMON_H

#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct toy {
    lt__vocab_desc d;
    char *tokens[4096], *merges[4096];
    uint32_t token_len[4096], merge_len[4096];
    int64_t types[4096];
    double scores[4096];
} toy;

static inline void toy_add_n(toy *v, const char *s, size_t n, int type, double score)
{
    uint64_t i = v->d.n_tokens++;
    v->tokens[i] = malloc(n + 1);
    memcpy(v->tokens[i], s, n);
    v->tokens[i][n] = '\0';
    v->token_len[i] = (uint32_t)n;
    v->types[i] = type;
    v->scores[i] = score;
    v->d.n_types = v->d.n_tokens;
    if (v->d.scores != NULL)
        v->d.n_scores = v->d.n_tokens;
}

static inline void toy_add(toy *v, const char *s, int type, double score) { toy_add_n(v, s, strlen(s), type, score); }

static inline void toy_merge(toy *v, const char *pair)
{
    uint64_t i = v->d.n_merges++;
    v->merges[i] = strdup(pair);
    v->merge_len[i] = (uint32_t)strlen(pair);
}

static inline toy *toy_new(const char *model, const char *pre)
{
    toy *v = calloc(1, sizeof *v);
    v->d = lt__vocab_desc_default();
    v->d.file = "toy.gguf";
    v->d.model = model;
    v->d.pre = pre;
    v->d.tokens = (const char *const *)v->tokens;
    v->d.token_len = v->token_len;
    v->d.types = v->types;
    v->d.merges = (const char *const *)v->merges;
    v->d.merge_len = v->merge_len;
    if (strcmp(model, "llama") == 0)
        v->d.scores = v->scores;
    return v;
}

static inline void toy_free(toy *v)
{
    for (uint64_t i = 0; i < v->d.n_tokens; i++)
        free(v->tokens[i]);
    for (uint64_t i = 0; i < v->d.n_merges; i++)
        free(v->merges[i]);
    free(v);
}

/* The 256 letters, each a token. */
static inline toy *toy_bpe(const char *pre)
{
    toy *v = toy_new("gpt2", pre);
    for (unsigned b = 0; b < 256; b++) {
        char s[4];
        toy_add_n(v, s, lt__utf8_put(lt__byte_letter((uint8_t)b), s), 1, 0);
    }
    return v;
}

/* "a b" as a merge, and its joint as a token where it is not one. */
static inline void toy_learn(toy *v, const char *a, const char *b)
{
    char pair[256], joint[256];
    snprintf(pair, sizeof pair, "%s %s", a, b);
    snprintf(joint, sizeof joint, "%s%s", a, b);
    for (uint64_t i = 0; i < v->d.n_merges; i++)
        if (strcmp(v->merges[i], pair) == 0)
            return;
    bool known = false;
    for (uint64_t i = 0; i < v->d.n_tokens && !known; i++)
        known = strcmp(v->tokens[i], joint) == 0;
    if (!known)
        toy_add(v, joint, 1, 0);
    toy_merge(v, pair);
}

/* unk, bos, eos, and where wanted the byte tokens. */
static inline toy *toy_spm(bool bytes)
{
    toy *v = toy_new("llama", NULL);
    toy_add(v, "<unk>", 2, 0);
    toy_add(v, "<s>", 3, 0);
    toy_add(v, "</s>", 3, 0);
    v->d.unk = 0;
    v->d.bos = 1;
    v->d.eos = 2;
    for (unsigned b = 0; bytes && b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        toy_add(v, s, 6, 0);
    }
    return v;
}

static inline uint32_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)(*seed >> 32);
}

#endif
