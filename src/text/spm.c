/* spm.c - SentencePiece's byte-pair encoding: of all neighbours whose join is a piece, the one of
 * highest score merges first, the leftmost among equals; what is no piece falls back to its bytes. */
#include "text/text.h"

typedef struct sym { uint32_t at, len; int32_t prev, next, id; } sym; /* len 0: merged away; id -1: no piece */
typedef struct cand { float score; uint32_t left, right, len; int32_t id; } cand;

typedef struct spm_run {
    const lt_tokenizer *tk;
    lt_tokens *out;
    const char *text; /* of the word at hand */
    sym *sym;
    cand *heap;
    size_t sym_cap, heap_cap, heap_n;
    uint32_t *cuts; /* per piece of type unused: bytes of the left half it was last joined from */
    uint32_t *todo; /* pairs at, len */
    size_t todo_cap;
    bool after_unknown;
} spm_run;

static bool sooner(const cand *a, const cand *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

/* Control, unknown and byte pieces are never made from letters. User-defined ones were cut out of
 * the text before: here only the space put in front could make one, which then would not go away again. */
static int32_t find_piece(const lt_tokenizer *tk, const char *s, size_t n)
{
    int32_t id = lt__vocab_find(tk, s, n);
    if (id < 0)
        return -1;
    uint8_t k = tk->kind[id];
    return k == LT_TOKEN_NORMAL || k == LT_TOKEN_UNUSED ? id : -1;
}

static lt_status remember_cut(spm_run *r, int32_t id, uint32_t left_len, lt_err *err)
{
    if (r->cuts == NULL) {
        r->cuts = lt__alloc_array(r->tk->ctx, r->tk->n, sizeof *r->cuts);
        if (r->cuts == NULL)
            return lt__fail_oom(err, r->tk->n * sizeof *r->cuts, "encoding text");
    }
    r->cuts[id] = left_len;
    return LT_OK;
}

static lt_status offer(spm_run *r, int32_t left, lt_err *err)
{
    if (left < 0 || r->sym[left].next < 0)
        return LT_OK;
    const sym *a = &r->sym[left], *b = &r->sym[a->next];
    int32_t id = find_piece(r->tk, r->text + a->at, (size_t)a->len + b->len);
    if (id < 0)
        return LT_OK;
    lt_status s = LT_OK;
    if (r->tk->kind[id] == LT_TOKEN_UNUSED)
        s = remember_cut(r, id, a->len, err);
    if (s == LT_OK)
        s = lt__grow(r->tk->ctx, (void **)&r->heap, &r->heap_cap, r->heap_n + 1, sizeof *r->heap, err);
    if (s != LT_OK)
        return s;
    cand c = {r->tk->scores[id], (uint32_t)left, (uint32_t)a->next, a->len + b->len, id};
    size_t i = r->heap_n++;
    for (; i > 0 && sooner(&c, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
    return LT_OK;
}

static cand take(spm_run *r)
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

static lt_status emit_known(spm_run *r, int32_t id, lt_err *err)
{
    r->after_unknown = false;
    return lt__push_id(r->tk, r->out, id, err);
}

static lt_status emit_unknown(spm_run *r, uint32_t at, uint32_t len, lt_err *err)
{
    lt_status s = LT_OK;
    /* Its own bytes would come back as U+2581. */
    if (r->tk->byte_tokens && len == 3 && memcmp(r->text + at, LT__METASPACE, 3) == 0)
        return emit_known(r, r->tk->byte_id[' '], err);
    if (r->tk->byte_tokens) {
        for (uint32_t i = 0; i < len && s == LT_OK; i++)
            s = emit_known(r, r->tk->byte_id[(uint8_t)r->text[at + i]], err);
        return s;
    }
    if (!r->after_unknown)
        s = lt__push_id(r->tk, r->out, r->tk->unk, err);
    r->after_unknown = true;
    return s;
}

/* A piece of type unused may be made on the way to another but not given out: it is cut back into
 * the halves it was joined from. The list replaces recursion, whose depth a file would choose. */
static lt_status emit_unused(spm_run *r, uint32_t at, uint32_t len, lt_err *err)
{
    size_t n = 0;
    lt_status s = lt__grow(r->tk->ctx, (void **)&r->todo, &r->todo_cap, 2, sizeof *r->todo, err);
    if (s != LT_OK)
        return s;
    r->todo[n++] = at;
    r->todo[n++] = len;
    while (n > 0 && s == LT_OK) {
        len = r->todo[--n];
        at = r->todo[--n];
        int32_t id = find_piece(r->tk, r->text + at, len);
        uint32_t left = id >= 0 && r->tk->kind[id] == LT_TOKEN_UNUSED && r->cuts != NULL ? r->cuts[id] : 0;
        if (id < 0) {
            s = emit_unknown(r, at, len, err);
        } else if (left == 0 || left >= len) {
            s = emit_known(r, id, err);
        } else if ((s = lt__grow(r->tk->ctx, (void **)&r->todo, &r->todo_cap, n + 4, sizeof *r->todo, err)) == LT_OK) {
            r->todo[n++] = at + left;
            r->todo[n++] = len - left;
            r->todo[n++] = at;
            r->todo[n++] = left;
        }
    }
    return s;
}

static lt_status merge_word(spm_run *r, const char *text, size_t n, lt_err *err)
{
    lt_status s = LT_OK;
    size_t count = 0;
    r->text = text;
    r->heap_n = 0;
    for (size_t at = 0; at < n; count++) {
        uint32_t cp;
        size_t len = lt__utf8_next(text + at, n - at, &cp);
        if (len == 0)
            len = 1; /* no UTF-8: the byte by itself */
        s = lt__grow(r->tk->ctx, (void **)&r->sym, &r->sym_cap, count + 1, sizeof *r->sym, err);
        if (s != LT_OK)
            return s;
        r->sym[count] = (sym){(uint32_t)at, (uint32_t)len, (int32_t)count - 1, (int32_t)count + 1, -1};
        at += len;
    }
    r->sym[count - 1].next = -1;
    for (size_t i = 0; i + 1 < count && s == LT_OK; i++)
        s = offer(r, (int32_t)i, err);
    while (s == LT_OK && r->heap_n > 0) {
        cand c = take(r);
        sym *left = &r->sym[c.left], *right = &r->sym[c.right];
        if (left->len == 0 || right->len == 0 || left->len + right->len != c.len)
            continue;
        left->len = c.len;
        left->id = c.id;
        left->next = right->next;
        right->len = 0;
        if (left->next >= 0)
            r->sym[left->next].prev = (int32_t)c.left;
        s = offer(r, left->prev, err);
        if (s == LT_OK)
            s = offer(r, (int32_t)c.left, err);
    }
    for (int32_t i = 0; i >= 0 && s == LT_OK; i = r->sym[i].next) {
        const sym *y = &r->sym[i];
        int32_t id = y->id >= 0 ? y->id : find_piece(r->tk, text + y->at, y->len);
        if (id < 0)
            s = emit_unknown(r, y->at, y->len, err);
        else if (r->tk->kind[id] == LT_TOKEN_UNUSED)
            s = emit_unused(r, y->at, y->len, err);
        else
            s = emit_known(r, id, err);
    }
    return s;
}

static lt_status encode_word(spm_run *r, lt__job *j, const char *text, size_t n, lt_err *err)
{
    lt__cached *slot = NULL;
    lt_status s;
    /* Without byte tokens neighbouring unknowns are one: a word depends on the one before. */
    if (r->tk->byte_tokens && lt__cache_find(j, text, n, &slot, &s, err))
        return s;
    size_t before = r->out->n;
    s = merge_word(r, text, n, err);
    if (s == LT_OK && slot != NULL)
        lt__cache_keep(j, slot, text, n, before);
    return s;
}

lt_status lt__spm_encode(lt__job *j, const char *text, size_t n, lt_err *err)
{
    const lt_tokenizer *tk = j->tk;
    spm_run r = {.tk = tk, .out = j->out};
    lt_status s = LT_OK;
    /* Before a U+2581 that no piece holds behind the byte in front of it, no merge can cross: words
     * by themselves give the same pieces as the whole, and stay in the cache. */
    for (size_t from = 0, to; from < n && s == LT_OK; from = to) {
        for (to = from + 1; to < n; to++) {
            const char *p = memchr(text + to, 0xe2, n - to);
            to = p != NULL ? (size_t)(p - text) : n;
            if (n - to >= 3 && memcmp(text + to, LT__METASPACE, 3) == 0 && !tk->crosses[(uint8_t)text[to - 1]])
                break;
        }
        if (to > n)
            to = n;
        s = encode_word(&r, j, text + from, to - from, err);
    }
    lt__free(tk->ctx, r.sym, r.sym_cap * sizeof *r.sym);
    lt__free(tk->ctx, r.heap, r.heap_cap * sizeof *r.heap);
    lt__free(tk->ctx, r.cuts, tk->n * sizeof *r.cuts);
    lt__free(tk->ctx, r.todo, r.todo_cap * sizeof *r.todo);
    return s;
}
