/* A small vocabulary and a text from the input. What builds must encode any bytes, give ids in
 * range, stream the same as at once, and where every byte has a token give the text back. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 96 };

typedef struct bytes { const uint8_t *p; size_t n; } bytes;
static uint8_t take(bytes *b) { return b->n > 0 ? (b->n--, *b->p++) : 0; }

typedef struct toy {
    lt__vocab_desc d;
    char text[(256 + MOST) * 40];
    size_t used;
    const char *token[256 + MOST], *merge[MOST];
    uint32_t token_len[256 + MOST], merge_len[MOST];
    int64_t type[256 + MOST];
    double score[256 + MOST];
} toy;

static const char *keep(toy *v, const char *s, size_t n)
{
    char *at = v->text + v->used;
    memcpy(at, s, n);
    at[n] = '\0';
    v->used += n + 1;
    return at;
}

static void add(toy *v, const char *s, size_t n, int type, double score)
{
    uint64_t i = v->d.n_tokens++;
    v->token[i] = keep(v, s, n);
    v->token_len[i] = (uint32_t)n;
    v->type[i] = type;
    v->score[i] = score;
}

static void add_random(toy *v, bytes *in)
{
    static const char *const parts[] = {"a", "b", "ab", "\xe2\x96\x81", " ", "\xc4\xa0", "<", ">", "\xc3\xa9", "1", "\n", "\xff", "\xe2\x96", "c", "<0x", "41>"};
    char s[40] = "";
    uint8_t shape = take(in);
    for (int k = 0; k <= (shape & 7) % 5; k++)
        strcat(s, parts[take(in) & 15]);
    static const uint8_t types[] = {1, 1, 1, 1, 3, 4, 5, 1};
    uint8_t t = take(in);
    add(v, s, strlen(s), t > 250 ? t - 246 : types[shape >> 5], -(double)(t & 31));
}

static void make(toy *v, bytes *in)
{
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen35", "tekken", "gpt-4o", "deepseek-coder", "falcon"};
    uint8_t mode = take(in);
    bool spm = mode & 1;
    v->d = lt__vocab_desc_default();
    v->d.model = spm ? "llama" : "gpt2";
    v->d.pre = pres[mode >> 1 & 7];
    v->d.arch = mode & 0x80 ? "phi3" : "llama";
    v->d.tokens = v->token;
    v->d.token_len = v->token_len;
    v->d.types = v->type;
    v->d.scores = spm ? v->score : NULL;
    v->d.merges = v->merge;
    v->d.merge_len = v->merge_len;
    v->d.add_space_prefix = mode >> 4 & 1;
    v->d.bos = mode & 0x20 ? take(in) : -1;
    v->d.unk = mode & 0x40 ? take(in) & 15 : -1;
    bool all = take(in) & 3;
    for (unsigned b = 0; b < 256 && (all || take(in) != 0xfe); b++) {
        char s[8];
        size_t n = spm ? (size_t)snprintf(s, sizeof s, "<0x%02X>", b) : lt__utf8_put(lt__byte_letter((uint8_t)b), s);
        add(v, s, n, spm ? 6 : 1, 0);
    }
    for (int k = take(in) % (MOST + 1); k > 0; k--)
        add_random(v, in);
    v->d.n_types = v->d.n_tokens;
    v->d.n_scores = spm ? v->d.n_tokens : 0;
    for (int k = spm ? 0 : take(in) % MOST; k > 0; k--) {
        uint64_t n = v->d.n_tokens;
        char s[90];
        if (n == 0)
            break;
        /* Mostly letters a to c and what was added: so that many merges name pieces that exist. */
        uint8_t a = take(in), b = take(in);
        uint64_t left = a < 128 && n > 256 ? 256 + a % (n - 256) : (uint64_t)(a % 3 + 'a') % n;
        uint64_t right = b < 128 && n > 256 ? 256 + b % (n - 256) : (uint64_t)(b % 3 + 'a') % n;
        int len = snprintf(s, sizeof s, "%s %s", v->token[left], v->token[right]);
        v->merge[v->d.n_merges] = keep(v, s, (size_t)len);
        v->merge_len[v->d.n_merges++] = (uint32_t)len;
    }
}

static void stream(const lt_tokenizer *tk, const lt_tokens *ids, lt_err *err)
{
    lt_detok *d;
    size_t n;
    if (lt_detok_create(tk, &d, err) != LT_OK)
        abort();
    for (size_t i = 0; i <= ids->n; i++) {
        const char *s = i < ids->n ? lt_detok_push(d, ids->v[i], &n) : lt_detok_flush(d, &n);
        if (lt__utf8_valid(s, n) != n)
            abort();
    }
    lt_detok_destroy(d);
}

/* Families whose text is not to come back: NFC, swallowed spaces, U+2581 taken for a space. */
static bool comes_back(const lt_tokenizer *tk, const char *text, size_t n)
{
    return tk->byte_tokens && !tk->rstrip && (tk->spm ? memmem(text, n, LT__METASPACE, 3) == NULL : !lt__split_rule_nfc(tk->rule));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static toy v;
    bytes in = {data, size};
    lt_ctx *ctx;
    lt_err err;
    lt_tokenizer *tk;
    v.used = 0;
    make(&v, &in);
    if (v.used > sizeof v.text || lt_ctx_create(NULL, &ctx, &err) != LT_OK)
        abort();
    if (lt__tokenizer_build(ctx, &v.d, &tk, &err) == LT_OK) {
        for (unsigned flags = 0; flags <= LT_ENCODE_SPECIAL; flags += LT_ENCODE_SPECIAL) {
            lt_tokens ids = {0};
            char *back;
            size_t n;
            if (lt_tokenizer_encode(tk, (const char *)in.p, in.n, flags, &ids, &err) != LT_OK)
                abort();
            for (size_t i = 0; i < ids.n; i++)
                if (ids.v[i] < 0 || (uint32_t)ids.v[i] >= tk->n)
                    abort();
            if (lt_tokenizer_decode(tk, ids.v, ids.n, true, &back, &n, &err) != LT_OK)
                abort();
            if (comes_back(tk, (const char *)in.p, in.n) && (n != in.n || memcmp(back, in.p, n) != 0))
                abort();
            stream(tk, &ids, &err);
            lt_tokenizer_free_text(tk, back, n);
            lt_tokens_clear(&ids);
        }
        lt_tokenizer_destroy(tk);
    }
    if (lt_ctx_host_bytes(ctx) != 0)
        abort();
    lt_ctx_destroy(ctx);
    return 0;
}
