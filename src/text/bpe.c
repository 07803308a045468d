/* bpe.c - byte-level byte-pair encoding: of all neighbouring pairs the one of lowest rank merges
 * first, the leftmost among equals, until no pair is in the table. */
#include "text/text.h"

#include <utf8proc.h>

typedef struct sym { int32_t id, prev, next; } sym; /* id -1: merged away */
typedef struct cand { uint32_t rank, at, left, right, merged; } cand;

typedef struct bpe_run {
    const lt_tokenizer *tk;
    lt__job *job;
    lt_tokens *out;
    sym *sym;
    cand *heap;
    size_t sym_cap, heap_cap, heap_n;
} bpe_run;

static lt_status small_word(bpe_run *r, uint32_t *id, size_t n, lt_err *err)
{
    const lt_tokenizer *tk = r->tk;
    uint32_t rank[LT__BPE_SMALL], merged[LT__BPE_SMALL];
    for (size_t i = 0; i + 1 < n; i++) {
        const lt__merge *m = lt__merge_find(tk, id[i], id[i + 1]);
        rank[i] = m != NULL ? m->rank : LT__NO_RANK;
        merged[i] = m != NULL ? m->merged : 0;
    }
    while (n > 1) {
        size_t k = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[k])
                k = i;
        if (rank[k] == LT__NO_RANK)
            break;
        id[k] = merged[k];
        n--;
        memmove(id + k + 1, id + k + 2, (n - k - 1) * sizeof *id);
        if (k + 1 < n) {
            memmove(rank + k, rank + k + 1, (n - k - 1) * sizeof *rank);
            memmove(merged + k, merged + k + 1, (n - k - 1) * sizeof *merged);
        }
        for (size_t i = k > 0 ? k - 1 : 0; i <= k && i + 1 < n; i++) {
            const lt__merge *m = lt__merge_find(tk, id[i], id[i + 1]);
            rank[i] = m != NULL ? m->rank : LT__NO_RANK;
            merged[i] = m != NULL ? m->merged : 0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        lt_status s = lt__push_id(tk, r->out, (int32_t)id[i], err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

static bool sooner(const cand *a, const cand *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static lt_status offer(bpe_run *r, int32_t at, lt_err *err)
{
    if (at < 0 || r->sym[at].next < 0)
        return LT_OK;
    uint32_t left = (uint32_t)r->sym[at].id, right = (uint32_t)r->sym[r->sym[at].next].id;
    const lt__merge *m = lt__merge_find(r->tk, left, right);
    if (m == NULL)
        return LT_OK;
    lt_status s = lt__grow(r->tk->ctx, (void **)&r->heap, &r->heap_cap, r->heap_n + 1, sizeof *r->heap, err);
    if (s != LT_OK)
        return s;
    cand c = {m->rank, (uint32_t)at, left, right, m->merged};
    size_t i = r->heap_n++;
    for (; i > 0 && sooner(&c, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
    return LT_OK;
}

static cand take(bpe_run *r)
{
    cand top = r->heap[0], last = r->heap[--r->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < r->heap_n; i = child) {
        if (child + 1 < r->heap_n && sooner(&r->heap[child + 1], &r->heap[child]))
            child++;
        if (!sooner(&r->heap[child], &last))
            break;
        r->heap[i] = r->heap[child];
    }
    r->heap[i] = last;
    return top;
}

/* n log n for words without an end in sight: a megabyte of one letter. */
static lt_status large_word(bpe_run *r, size_t n, lt_err *err)
{
    lt_status s = LT_OK;
    r->heap_n = 0;
    for (size_t i = 0; i + 1 < n && s == LT_OK; i++)
        s = offer(r, (int32_t)i, err);
    while (s == LT_OK && r->heap_n > 0) {
        cand c = take(r);
        sym *left = &r->sym[c.at];
        if (left->id != (int32_t)c.left || left->next < 0 || r->sym[left->next].id != (int32_t)c.right)
            continue;
        sym *right = &r->sym[left->next];
        left->id = (int32_t)c.merged;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            r->sym[left->next].prev = (int32_t)c.at;
        s = offer(r, left->prev, err);
        if (s == LT_OK)
            s = offer(r, (int32_t)c.at, err);
    }
    for (int32_t i = 0; i >= 0 && s == LT_OK; i = r->sym[i].next)
        s = lt__push_id(r->tk, r->out, r->sym[i].id, err);
    return s;
}

/* Turns a word's bytes into letters and looks it up whole where the family does so first. */
static int32_t whole_word(const lt_tokenizer *tk, const char *word, size_t n)
{
    char letters[2 * 128];
    if (n > 128)
        return -1;
    size_t o = 0;
    for (size_t i = 0; i < n; i++)
        o += lt__utf8_put(lt__byte_letter((uint8_t)word[i]), letters + o);
    int32_t id = lt__vocab_find(tk, letters, o);
    return id >= 0 && tk->kind[id] != LT_TOKEN_CONTROL ? id : -1;
}

static lt_status merge_word(bpe_run *r, const char *word, size_t n, lt_err *err)
{
    const lt_tokenizer *tk = r->tk;
    if (lt__split_rule_whole(tk->rule)) {
        int32_t id = whole_word(tk, word, n);
        if (id >= 0)
            return lt__push_id(tk, r->out, id, err);
    }
    /* A byte the vocabulary has no letter for leaves nothing behind, as in the vendors' library. */
    size_t k = 0;
    if (n <= LT__BPE_SMALL) {
        uint32_t id[LT__BPE_SMALL];
        for (size_t i = 0; i < n; i++)
            if (tk->byte_id[(uint8_t)word[i]] >= 0)
                id[k++] = (uint32_t)tk->byte_id[(uint8_t)word[i]];
        return small_word(r, id, k, err);
    }
    lt_status s = lt__grow(tk->ctx, (void **)&r->sym, &r->sym_cap, n, sizeof *r->sym, err);
    if (s != LT_OK)
        return s;
    for (size_t i = 0; i < n; i++)
        if (tk->byte_id[(uint8_t)word[i]] >= 0) {
            r->sym[k] = (sym){tk->byte_id[(uint8_t)word[i]], (int32_t)k - 1, (int32_t)k + 1};
            k++;
        }
    if (k == 0)
        return LT_OK;
    r->sym[k - 1].next = -1;
    return large_word(r, k, err);
}

static lt_status encode_word(void *user, const char *word, size_t n, lt_err *err)
{
    bpe_run *r = user;
    lt__cached *slot;
    lt_status s;
    if (lt__cache_find(r->job, word, n, &slot, &s, err))
        return s;
    size_t before = r->out->n;
    s = merge_word(r, word, n, err);
    if (s == LT_OK && slot != NULL)
        lt__cache_keep(r->job, slot, word, n, before);
    return s;
}

/* NFC of valid text. *text stays where nothing changes, else *made holds the new one. */
static lt_status normalise(lt_ctx *ctx, const char **text, size_t *n, char **made, size_t *made_bytes, lt_err *err)
{
    const char *p = *text, *end = p + *n;
    /* Below U+0300 every character is its own NFC and composes with nothing. */
    for (uint32_t cp; p < end; p += lt__utf8_next(p, (size_t)(end - p), &cp))
        if ((unsigned char)*p >= 0xcc)
            break;
    if (p == end)
        return LT_OK;
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t cps = utf8proc_decompose((const utf8proc_uint8_t *)*text, (utf8proc_ssize_t)*n, NULL, 0, how);
    if (cps < 0)
        return lt__fail(err, LT_E_INVALID, "normalising %zu bytes of text: %s", *n, utf8proc_errmsg(cps));
    size_t bytes = ((size_t)cps + 1) * sizeof(utf8proc_int32_t);
    utf8proc_int32_t *buf = lt__alloc(ctx, bytes);
    if (buf == NULL)
        return lt__fail_oom(err, bytes, "normalising text");
    utf8proc_decompose((const utf8proc_uint8_t *)*text, (utf8proc_ssize_t)*n, buf, cps, how);
    *n = (size_t)utf8proc_reencode(buf, cps, how);
    *text = *made = (char *)buf;
    *made_bytes = bytes;
    return LT_OK;
}

static lt_status encode_valid(bpe_run *r, const char *text, size_t n, lt_err *err)
{
    char *made = NULL;
    size_t made_bytes = 0;
    lt_status s = LT_OK;
    if (lt__split_rule_nfc(r->tk->rule))
        s = normalise(r->tk->ctx, &text, &n, &made, &made_bytes, err);
    if (s == LT_OK)
        s = lt__split_run(r->tk->split, text, n, encode_word, r, err);
    lt__free(r->tk->ctx, made, made_bytes);
    return s;
}

/* Bytes that are no UTF-8 are words of their own, so that they come back as they were. Where one
 * has no letter in the vocabulary it becomes U+FFFD, which is what the vendors see in its place. */
static lt_status encode_invalid(bpe_run *r, const char *text, size_t n, lt_err *err)
{
    lt_status s = LT_OK;
    size_t from = 0;
    for (size_t i = 0; i <= n && s == LT_OK; i++) {
        bool known = i < n && r->tk->byte_id[(uint8_t)text[i]] >= 0;
        if (known)
            continue;
        if (i > from)
            s = encode_word(r, text + from, i - from, err);
        if (i < n && s == LT_OK)
            s = encode_word(r, "\xef\xbf\xbd", 3, err);
        from = i + 1;
    }
    return s;
}

lt_status lt__bpe_encode(lt__job *j, const char *text, size_t n, lt_err *err)
{
    const lt_tokenizer *tk = j->tk;
    bpe_run r = {.tk = tk, .job = j, .out = j->out};
    lt_status s = LT_OK;
    for (size_t at = 0; at < n && s == LT_OK;) {
        size_t good = lt__utf8_valid(text + at, n - at);
        if (good > 0)
            s = encode_valid(&r, text + at, good, err);
        at += good;
        size_t bad = 0;
        uint32_t cp;
        while (at + bad < n && lt__utf8_next(text + at + bad, n - at - bad, &cp) == 0)
            bad++;
        if (bad > 0 && s == LT_OK)
            s = encode_invalid(&r, text + at, bad, err);
        at += bad;
    }
    lt__free(tk->ctx, r.sym, r.sym_cap * sizeof *r.sym);
    lt__free(tk->ctx, r.heap, r.heap_cap * sizeof *r.heap);
    return s;
}
