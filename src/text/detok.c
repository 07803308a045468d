/* detok.c - ids back to bytes, at once or as they come. */
#include "text/text.h"

struct lt_detok {
    const lt_tokenizer *tk;
    bool special;
    bool at_start;     /* the next piece's first U+2581 is the prefix the encoder put there */
    char *buf;         /* what the last push gave, then the bytes of a character not yet whole */
    size_t size, held, given;
};

/* Bytes a piece can become, at most: as many as it is spelled with, or " U+2047 " for unknown. */
static size_t most_bytes(const lt_tokenizer *tk)
{
    return (tk->max_len > 5 ? tk->max_len : 5) + 1;
}

/* GPT-2's letters back to bytes; a piece with a character outside the alphabet is itself. */
static size_t letters_to_bytes(const char *s, size_t n, char *out)
{
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = lt__utf8_next(s + i, n - i, &cp);
        int byte = k > 0 ? lt__letter_byte(cp) : -1;
        if (byte < 0) {
            memcpy(out, s, n);
            return n;
        }
        out[o++] = (char)byte;
        i += k;
    }
    return o;
}

/* Writes the bytes of one token, at most most_bytes. */
static size_t token_bytes(const lt_tokenizer *tk, int32_t id, bool special, bool *at_start, char *out)
{
    if (id < 0 || (uint32_t)id >= tk->n)
        return 0;
    uint32_t n;
    const char *s = lt__piece(tk, (uint32_t)id, &n);
    uint8_t kind = tk->kind[id];
    bool start = *at_start;
    *at_start = tk->space_prefix && (kind == LT_TOKEN_CONTROL || kind == LT_TOKEN_USER);
    if (kind == LT_TOKEN_CONTROL && !special)
        return 0;
    if (kind == LT_TOKEN_UNKNOWN && !special) {
        memcpy(out, " \xe2\x81\x87 ", 5);
        return 5;
    }
    bool as_spelled = kind == LT_TOKEN_CONTROL || kind == LT_TOKEN_UNKNOWN || kind == LT_TOKEN_USER;
    if (!tk->spm && as_spelled) {
        memcpy(out, s, n);
        return n;
    }
    if (!tk->spm)
        return letters_to_bytes(s, n, out);
    if (kind == LT_TOKEN_BYTE) {
        unsigned hi = (unsigned char)s[3], lo = (unsigned char)s[4];
        unsigned byte = (hi <= '9' ? hi - '0' : hi - 'A' + 10) << 4 | (lo <= '9' ? lo - '0' : lo - 'A' + 10);
        out[0] = (char)byte;
        return !(start && byte == ' '); /* the prefix of a vocabulary without a piece for it */
    }
    size_t o = 0;
    for (uint32_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, LT__METASPACE, 3) == 0) {
            if (i > 0 || !start || as_spelled)
                out[o++] = ' ';
            i += 3;
        } else {
            out[o++] = s[i++];
        }
    }
    return o;
}

lt_status lt_detok_create(const lt_tokenizer *tk, lt_detok **out, lt_err *err)
{
    *out = NULL;
    lt_detok *d = lt__zalloc(tk->ctx, sizeof *d);
    if (d == NULL)
        return lt__fail_oom(err, sizeof *d, "the detokeniser");
    /* Held bytes, at most three, may each become U+FFFD. */
    d->size = most_bytes(tk) * 3 + 16;
    d->tk = tk;
    d->at_start = tk->space_prefix;
    d->buf = lt__alloc(tk->ctx, 2 * d->size);
    if (d->buf == NULL) {
        size_t size = d->size;
        lt__free(tk->ctx, d, sizeof *d);
        return lt__fail_oom(err, 2 * size, "the detokeniser");
    }
    *out = d;
    return LT_OK;
}

void lt_detok_destroy(lt_detok *d)
{
    if (d == NULL)
        return;
    lt__free(d->tk->ctx, d->buf, 2 * d->size);
    lt__free(d->tk->ctx, d, sizeof *d);
}

void lt_detok_show_special(lt_detok *d, bool on) { d->special = on; }

/* Could more bytes make text[0..n), n < 4, a valid character? */
static bool may_become(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t need = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : p[0] >= 0xe0 && p[0] <= 0xef ? 3 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : 0;
    if (n >= need)
        return false;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return false;
    if (n == 1)
        return true;
    return !((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
             (p[0] == 0xf4 && p[1] > 0x8f));
}

const char *lt_detok_push(lt_detok *d, int32_t id, size_t *bytes)
{
    /* Raw bytes gather in the second half; whole characters go to the first. */
    char *raw = d->buf + d->size, *out = d->buf;
    size_t n = d->held + token_bytes(d->tk, id, d->special, &d->at_start, raw + d->held);
    size_t i = 0, o = 0;
    while (i < n) {
        uint32_t cp;
        size_t k = lt__utf8_next(raw + i, n - i, &cp);
        if (k > 0) {
            memcpy(out + o, raw + i, k);
            o += k;
            i += k;
        } else if (n - i < 4 && may_become(raw + i, n - i)) {
            break;
        } else {
            /* One U+FFFD for the longest run that began like a character. */
            for (k = 1; i + k < n && k < 3 && may_become(raw + i, k + 1);)
                k++;
            memcpy(out + o, "\xef\xbf\xbd", 3);
            o += 3;
            i += k;
        }
    }
    d->held = n - i;
    memmove(raw, raw + i, d->held);
    *bytes = o;
    return out;
}

const char *lt_detok_flush(lt_detok *d, size_t *bytes)
{
    *bytes = 0;
    if (d->held > 0) {
        memcpy(d->buf, "\xef\xbf\xbd", 3);
        *bytes = 3;
    }
    d->held = 0;
    return d->buf;
}

lt_status lt_tokenizer_decode(const lt_tokenizer *tk, const int32_t *ids, size_t n, bool special,
                              char **text, size_t *bytes, lt_err *err)
{
    *text = NULL;
    *bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= tk->n)
            return lt__fail(err, LT_E_INVALID, "token %zu to decode is %d, expected 0 to %u", i, ids[i], tk->n - 1);
    size_t cap = 0, used = 0;
    bool start = tk->space_prefix;
    char *buf = NULL;
    lt_status s = lt__grow(tk->ctx, (void **)&buf, &cap, 1, 1, err);
    for (size_t i = 0; i < n && s == LT_OK; i++) {
        s = lt__grow(tk->ctx, (void **)&buf, &cap, used + most_bytes(tk) + 1, 1, err);
        if (s == LT_OK)
            used += token_bytes(tk, ids[i], special, &start, buf + used);
    }
    if (s == LT_OK) {
        /* The caller gives the length back to free it: the block must have just that size. */
        char *exact = lt__alloc(tk->ctx, used + 1);
        if (exact == NULL)
            s = lt__fail_oom(err, used + 1, "decoded text");
        else
            memcpy(exact, buf, used);
        if (exact != NULL) {
            exact[used] = '\0';
            *text = exact;
            *bytes = used;
        }
    }
    lt__free(tk->ctx, buf, cap);
    return s;
}

void lt_tokenizer_free_text(const lt_tokenizer *tk, char *text, size_t bytes)
{
    if (text != NULL)
        lt__free(tk->ctx, text, bytes + 1);
}
