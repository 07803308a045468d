/* text.h - inside the tokenizer: the vocabulary, its indexes, the two engines, the split rules. */
#ifndef LT_TEXT_TEXT_H
#define LT_TEXT_TEXT_H

#include "base/mem.h"
#include "lowtide/tokenizer.h"

#include <string.h>

/* What a vocabulary is made from, wherever it lies. Nothing is kept after the build. */
typedef struct lt__vocab_desc {
    const char *file;         /* opens every error sentence */
    const char *arch, *model; /* general.architecture; "gpt2" or "llama" */
    const char *pre;          /* NULL: the key is absent */
    const char *const *tokens;
    const uint32_t *token_len;
    uint64_t n_tokens;
    const int64_t *types; /* NULL: absent */
    uint64_t n_types;
    const double *scores; /* NULL: absent */
    uint64_t n_scores;
    const char *const *merges;
    const uint32_t *merge_len;
    uint64_t n_merges;
    int64_t bos, eos, eot, eom, unk;             /* -1: absent */
    int add_bos, add_eos, add_space_prefix;      /* -1: absent */
} lt__vocab_desc;

lt__vocab_desc lt__vocab_desc_default(void);
LT_NODISCARD lt_status
lt__tokenizer_build(lt_ctx *ctx, const lt__vocab_desc *d, lt_tokenizer **out, lt_err *err);

typedef struct lt__split lt__split;
typedef struct lt__split_rule lt__split_rule;

typedef struct lt__merge { uint64_t pair; uint32_t rank, merged; } lt__merge;
#define LT__NO_RANK UINT32_MAX

struct lt_tokenizer {
    lt_ctx *ctx;
    bool spm, add_bos, add_eos, space_prefix, rstrip, has_unused, byte_tokens;
    char name[40];
    int32_t bos, eos, unk;
    int32_t ends[24];
    uint32_t n_ends;

    uint32_t n, max_len;
    char *bytes; /* every piece, NUL-terminated, in id order */
    uint64_t bytes_size;
    uint32_t *off; /* n + 1; piece i is off[i] .. off[i + 1] - 1 */
    uint8_t *kind;
    float *scores; /* spm only */
    int32_t byte_id[256];

    struct lt__slot { uint32_t hash, id1; } *slots; /* id + 1; 0: free */
    uint32_t slot_mask;

    /* Pieces that are cut out of the text first, sorted by their spelling in it: spm has U+2581
     * as a space here, because the files spell it either way. */
    struct lt__special { uint32_t at, len, id; } *special;
    char *special_text;
    uint32_t n_special, special_bytes;
    uint32_t special_first[257];

    lt__merge *merges; /* rank LT__NO_RANK: free */
    uint64_t merge_slots;
    const lt__split_rule *rule;
    lt__split *split;

    /* spm: may a piece hold U+2581 right after a byte of this value? If not, text is cut there. */
    uint8_t crosses[256];
};

static inline const char *lt__piece(const lt_tokenizer *tk, uint32_t id, uint32_t *len)
{
    *len = tk->off[id + 1] - tk->off[id] - 1;
    return tk->bytes + tk->off[id];
}

/* vocab.c */
uint32_t lt__hash_bytes(const char *p, size_t n);
int32_t lt__vocab_find(const lt_tokenizer *tk, const char *s, size_t n); /* -1: none */
/* The longest special piece that p[0..n) starts with; 0: none. `control`: control pieces count too. */
size_t lt__special_match(const lt_tokenizer *tk, const char *p, size_t n, bool control, int32_t *id);
static inline uint64_t lt__pair_hash(uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}
static inline const lt__merge *lt__merge_find(const lt_tokenizer *tk, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right, mask = tk->merge_slots - 1;
    for (uint64_t i = lt__pair_hash(pair) & mask;; i = (i + 1) & mask) {
        const lt__merge *m = &tk->merges[i];
        if (m->rank == LT__NO_RANK)
            return NULL;
        if (m->pair == pair)
            return m;
    }
}
/* Printable ASCII form of bytes from a file, for error sentences; returns buf. */
const char *lt__quote(char *buf, size_t buf_bytes, const char *s, size_t n);

LT_NODISCARD lt_status lt__push_id(const lt_tokenizer *tk, lt_tokens *out, int32_t id, lt_err *err);

/* Words already encoded in this call: text repeats itself. */
enum { LT__CACHE_SLOTS = 2048, LT__CACHE_WORD = 20 };
typedef struct lt__cached { uint32_t hash, at; uint8_t len, n; char word[LT__CACHE_WORD]; } lt__cached;

/* One call of encode. */
typedef struct lt__job {
    const lt_tokenizer *tk;
    lt_tokens *out;
    lt__cached *cache; /* NULL: none, for short texts */
} lt__job;
/* True: the word's ids were appended (or *status says why not). Else *slot, where not NULL, is to
 * be given to lt__cache_keep with the length of the output before the word. */
bool lt__cache_find(lt__job *j, const char *word, size_t n, lt__cached **slot, lt_status *status, lt_err *err);
void lt__cache_keep(lt__job *j, lt__cached *slot, const char *word, size_t n, size_t before);

/* bpe.c, spm.c: text without special pieces. */
LT_NODISCARD lt_status lt__bpe_encode(lt__job *j, const char *text, size_t n, lt_err *err);
/* `text` has its spaces as U+2581 already. */
LT_NODISCARD lt_status lt__spm_encode(lt__job *j, const char *text, size_t n, lt_err *err);
/* Above this many symbols a word goes through the heap; tests set both paths against each other. */
#define LT__BPE_SMALL 40

/* The byte-level alphabet: each byte as a printable character. */
uint32_t lt__byte_letter(uint8_t byte);  /* code point */
int lt__letter_byte(uint32_t cp);        /* -1: not a letter of it */

/* split.c */
const lt__split_rule *lt__split_rule_find(const char *pre);  /* NULL: unknown */
const char *lt__split_rule_name(const lt__split_rule *r);
bool lt__split_rule_nfc(const lt__split_rule *r);
bool lt__split_rule_whole(const lt__split_rule *r); /* a word that is a piece is that piece, merges or not */
bool lt__split_rule_bos(const lt__split_rule *r);   /* bos is the family's default */
LT_NODISCARD lt_status lt__split_create(lt_ctx *ctx, const lt__split_rule *r, lt__split **out, lt_err *err);
void lt__split_destroy(lt__split *s);
typedef lt_status lt__word_fn(void *user, const char *word, size_t n, lt_err *err);
/* `text` must be valid UTF-8. */
LT_NODISCARD lt_status
lt__split_run(const lt__split *s, const char *text, size_t n, lt__word_fn *fn, void *user, lt_err *err);

/* UTF-8, strictly: no surrogates, no overlong forms, at most U+10FFFF. */
#define LT__METASPACE "\xe2\x96\x81"
/* Bytes of the valid character at p, or 0; *cp is its code point. */
static inline size_t lt__utf8_next(const char *text, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)text;
    if (n == 0)
        return 0;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    size_t need = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n < need)
        return 0;
    uint32_t c = p[0] & (0x7fu >> need);
    for (size_t i = 1; i < need; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if ((need == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) || (need == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 0;
    *cp = c;
    return need;
}
size_t lt__utf8_valid(const char *text, size_t n); /* length of the longest valid prefix */
size_t lt__utf8_put(uint32_t cp, char *out);       /* 1 to 4 bytes */

#endif
