/* split.c - how each family cuts text into words before merging, by its own published patterns. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/text.h"

#include <pcre2.h>

/* White space is spelled out: PCRE2's \s under UCP also takes U+180E, the vendors' engines do not. */
#define WS "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE "[" WS "]"
#define BLACK "[^" WS "]"
#define TAIL SPACE "+(?!" BLACK ")|" SPACE "+"
#define SHORTENED "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" TAIL
#define LLAMA3 SHORTENED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" \
    SPACE "*[\\r\\n]+|" TAIL
#define QWEN2 SHORTENED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" \
    SPACE "*[\\r\\n]+|" TAIL
#define QWEN35 SHORTENED "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" \
    SPACE "*[\\r\\n]+|" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after) "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" after
#define TEKKEN CASED("") "|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE "*[\\r\\n]+|" TAIL
#define O200K CASED(SHORTENED "?") "|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE "*[\\r\\n]+|" TAIL

/* A rule is one to five stages; each cuts the pieces of the one before, matches and gaps alike. */
#define MAX_STAGES 5
struct lt__split_rule {
    const char *name;
    const char *stages[MAX_STAGES + 1];
    unsigned letters; /* bit i: stage i sees the byte-level letters as its characters, not the text */
    bool nfc, whole, bos;
};

/* Falcon's digits are looked for after the bytes became letters, among which are the numerals
 * U+00B2, B3, B9, BC, BD, BE: bytes of those values end a word wherever they stand. */
#define FALCON_NUMERAL "[0-9\\xb2\\xb3\\xb9\\xbc\\xbd\\xbe]+"

enum { R_GPT2, R_NEOX, R_SMOLLM, R_LLAMA3, R_DBRX, R_QWEN2, R_QWEN35, R_TEKKEN, R_O200K, R_DEEPSEEK_CODER, R_FALCON };
static const lt__split_rule rules[] = {
    [R_GPT2] = {.name = "gpt-2", .stages = {GPT2}},
    [R_NEOX] = {.name = "gpt-neox", .stages = {GPT2}, .nfc = true},
    [R_SMOLLM] = {.name = "smollm", .stages = {"\\p{N}", GPT2}},
    [R_LLAMA3] = {.name = "llama3", .stages = {LLAMA3}, .whole = true, .bos = true},
    [R_DBRX] = {.name = "cl100k", .stages = {LLAMA3}},
    [R_QWEN2] = {.name = "qwen2", .stages = {QWEN2}, .nfc = true},
    [R_QWEN35] = {.name = "qwen35", .stages = {QWEN35}, .nfc = true},
    [R_TEKKEN] = {.name = "tekken", .stages = {TEKKEN}, .whole = true, .bos = true},
    [R_O200K] = {.name = "o200k", .stages = {O200K}},
    [R_DEEPSEEK_CODER] = {.name = "deepseek-coder",
        .stages = {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+",
                   "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", "\\p{N}"}},
    [R_FALCON] = {.name = "falcon",
        .stages = {"[\\p{P}$+<=>^`|~]+", GPT2, FALCON_NUMERAL, "[0-9][0-9][0-9]"}, .letters = 1u << 2 | 1u << 3},
};

static const struct { const char *pre; int rule; } names[] = {
    {"gpt-2", R_GPT2}, {"phi-2", R_GPT2}, {"mpt", R_NEOX}, {"olmo", R_NEOX}, {"gpt-neox", R_NEOX},
    {"smollm", R_SMOLLM}, {"starcoder", R_SMOLLM}, {"refact", R_SMOLLM}, {"codeshell", R_SMOLLM},
    {"llama3", R_LLAMA3}, {"llama-v3", R_LLAMA3}, {"llama-bpe", R_LLAMA3}, {"dbrx", R_DBRX},
    {"qwen2", R_QWEN2}, {"deepseek-r1-qwen", R_QWEN2}, {"qwen35", R_QWEN35},
    {"tekken", R_TEKKEN}, {"gpt-4o", R_O200K}, {"llama4", R_O200K},
    {"deepseek-coder", R_DEEPSEEK_CODER}, {"falcon", R_FALCON},
};

const lt__split_rule *lt__split_rule_find(const char *pre)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].pre, pre) == 0)
            return &rules[names[i].rule];
    return NULL;
}

const char *lt__split_rule_name(const lt__split_rule *r) { return r->name; }
bool lt__split_rule_nfc(const lt__split_rule *r) { return r->nfc; }
bool lt__split_rule_whole(const lt__split_rule *r) { return r->whole; }
bool lt__split_rule_bos(const lt__split_rule *r) { return r->bos; }

struct lt__split {
    lt_ctx *ctx;
    unsigned n;
    pcre2_general_context *general;
    pcre2_match_context *match;
    pcre2_code *code[MAX_STAGES];
};

/* PCRE2 frees without saying how much; the size is kept in front. */
typedef union block_head { size_t bytes; max_align_t align; } block_head;

static void *re_alloc(size_t bytes, void *user)
{
    if (bytes > SIZE_MAX - sizeof(block_head))
        return NULL;
    block_head *b = lt__alloc(user, bytes + sizeof *b);
    if (b == NULL)
        return NULL;
    b->bytes = bytes + sizeof *b;
    return b + 1;
}

static void re_free(void *ptr, void *user)
{
    if (ptr != NULL) {
        block_head *b = (block_head *)ptr - 1;
        lt__free(user, b, b->bytes);
    }
}

lt_status lt__split_create(lt_ctx *ctx, const lt__split_rule *r, lt__split **out, lt_err *err)
{
    *out = NULL;
    lt__split *s = lt__zalloc(ctx, sizeof *s);
    if (s == NULL)
        return lt__fail_oom(err, sizeof *s, "the split rule");
    s->ctx = ctx;
    s->general = pcre2_general_context_create(re_alloc, re_free, ctx);
    s->match = s->general != NULL ? pcre2_match_context_create(s->general) : NULL;
    pcre2_compile_context *compile = s->match != NULL ? pcre2_compile_context_create(s->general) : NULL;
    lt_status status = LT_OK;
    if (compile == NULL) {
        status = lt__fail_oom(err, sizeof *s, "the split rule");
        goto done;
    }
    /* The patterns cannot explode: each stage backtracks over one run. Long runs must not be refused. */
    pcre2_set_match_limit(s->match, UINT32_MAX);
    pcre2_set_depth_limit(s->match, UINT32_MAX);
    bool jit = true;
    for (unsigned i = 0; r->stages[i] != NULL; i++) {
        int code;
        PCRE2_SIZE at;
        uint32_t options = r->letters >> i & 1 ? 0 : PCRE2_UTF | PCRE2_UCP;
        s->code[i] = pcre2_compile((PCRE2_SPTR)r->stages[i], PCRE2_ZERO_TERMINATED, options, &code, &at, compile);
        if (s->code[i] == NULL) {
            if (code == PCRE2_ERROR_HEAP_FAILED)
                status = lt__fail_oom(err, strlen(r->stages[i]), "the split rule");
            else
                status = lt__fail_native(err, LT_E_UNSUPPORTED, code,
                                         "split rule \"%s\": this machine's PCRE2 refuses stage %u at character %zu (error %d)",
                                         r->name, i, (size_t)at, code);
            goto done;
        }
        s->n = i + 1;
        jit &= pcre2_jit_compile(s->code[i], PCRE2_JIT_COMPLETE) == 0;
    }
    if (!jit)
        lt__log(ctx, LT_LOG_INFO, "text", "split rule \"%s\" runs without PCRE2's compiler: slower, same words", r->name);
    *out = s;
done:
    pcre2_compile_context_free(compile);
    if (status != LT_OK)
        lt__split_destroy(s);
    return status;
}

void lt__split_destroy(lt__split *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < s->n; i++)
        pcre2_code_free(s->code[i]);
    pcre2_match_context_free(s->match);
    pcre2_general_context_free(s->general);
    lt__free(s->ctx, s, sizeof *s);
}

typedef struct split_run {
    const lt__split *s;
    pcre2_match_data *data[MAX_STAGES];
    lt__word_fn *fn;
    void *user;
    lt_err *err;
} split_run;

static lt_status cut(split_run *r, unsigned stage, const char *text, size_t n)
{
    if (stage == r->s->n)
        return r->fn(r->user, text, n, r->err);
    size_t done = 0, at = 0;
    lt_status status = LT_OK;
    while (at < n && status == LT_OK) {
        const pcre2_code *code = r->s->code[stage];
        int rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, r->data[stage], r->s->match);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->data[stage], r->s->match);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return lt__fail_oom(r->err, n, "splitting text into words");
        if (rc < 0)
            return lt__fail_native(r->err, LT_E_UNSUPPORTED, rc, "splitting %zu bytes of text into words: PCRE2 error %d", n, rc);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->data[stage]);
        if (span[0] > done)
            status = cut(r, stage + 1, text + done, span[0] - done);
        if (status == LT_OK && span[1] > span[0])
            status = cut(r, stage + 1, text + span[0], span[1] - span[0]);
        done = at = span[1];
    }
    if (status == LT_OK && done < n)
        status = cut(r, stage + 1, text + done, n - done);
    return status;
}

lt_status lt__split_run(const lt__split *s, const char *text, size_t n, lt__word_fn *fn, void *user, lt_err *err)
{
    split_run r = {.s = s, .fn = fn, .user = user, .err = err};
    lt_status status = LT_OK;
    for (unsigned i = 0; i < s->n && status == LT_OK; i++) {
        r.data[i] = pcre2_match_data_create(1, s->general);
        if (r.data[i] == NULL)
            status = lt__fail_oom(err, 256, "splitting text into words");
    }
    if (status == LT_OK)
        status = cut(&r, 0, text, n);
    for (unsigned i = 0; i < s->n; i++)
        pcre2_match_data_free(r.data[i]);
    return status;
}
