/* vocab.c - pieces and their indexes, checked against each other once. */
#include "text/text.h"

#include <math.h>
#include <stdio.h>

size_t lt__utf8_valid(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= 8 && (memcpy(&w, text + i, 8), (w & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        uint32_t cp;
        size_t k = lt__utf8_next(text + i, n - i, &cp);
        if (k == 0)
            return i;
        i += k;
    }
    return n;
}

size_t lt__utf8_put(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xffu) | cp);
    return n;
}

const char *lt__quote(char *buf, size_t buf_bytes, const char *s, size_t n)
{
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (o + 8 > buf_bytes || i >= 48) {
            memcpy(buf + o, "...", 4);
            return buf;
        }
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
            buf[o++] = (char)c;
        else
            o += (size_t)snprintf(buf + o, buf_bytes - o, "\\x%02x", c);
    }
    buf[o] = '\0';
    return buf;
}

/* The alphabet of GPT-2: bytes that print stand for themselves, the others for U+0100 and on, in order. */
static bool byte_prints(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t lt__byte_letter(uint8_t byte)
{
    if (byte_prints(byte))
        return byte;
    uint32_t k = 0;
    for (unsigned b = 0; b < byte; b++)
        k += !byte_prints(b);
    return 0x100 + k;
}

int lt__letter_byte(uint32_t cp)
{
    if (cp < 0x100)
        return byte_prints(cp) ? (int)cp : -1;
    /* 0x00-0x20, 0x7f-0xa0, 0xad are the 68 that do not print. */
    uint32_t k = cp - 0x100;
    if (k <= 0x20)
        return (int)k;
    if (k <= 0x20 + 34)
        return (int)(k - 0x21 + 0x7f);
    return k == 67 ? 0xad : -1;
}

uint32_t lt__hash_bytes(const char *p, size_t n)
{
    uint64_t h = n * 0xff51afd7ed558ccdu, w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, p, n);
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return (uint32_t)(h >> 32);
}

int32_t lt__vocab_find(const lt_tokenizer *tk, const char *s, size_t n)
{
    if (n == 0 || n > tk->max_len)
        return -1;
    uint32_t h = lt__hash_bytes(s, n);
    for (uint32_t i = h & tk->slot_mask;; i = (i + 1) & tk->slot_mask) {
        const struct lt__slot *slot = &tk->slots[i];
        if (slot->id1 == 0)
            return -1;
        if (slot->hash == h) {
            uint32_t len;
            const char *piece = lt__piece(tk, slot->id1 - 1, &len);
            if (len == n && memcmp(piece, s, n) == 0)
                return (int32_t)(slot->id1 - 1);
        }
    }
}

static lt_status copy_pieces(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    if (d->n_tokens == 0 || d->n_tokens > INT32_MAX)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.tokens has %llu entries, expected 1 to 2147483647",
                        d->file, (unsigned long long)d->n_tokens);
    uint64_t total = 0;
    for (uint64_t i = 0; i < d->n_tokens; i++) {
        if (d->token_len[i] == 0 || d->token_len[i] > UINT16_MAX)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.tokens[%llu] has %u bytes, expected 1 to 65535",
                            d->file, (unsigned long long)i, d->token_len[i]);
        total += (uint64_t)d->token_len[i] + 1;
        if (total > UINT32_MAX)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.tokens holds more than 4 GiB of text", d->file);
        if (d->token_len[i] > tk->max_len)
            tk->max_len = d->token_len[i];
    }
    tk->n = (uint32_t)d->n_tokens;
    tk->bytes = lt__alloc(tk->ctx, total);
    if (tk->bytes == NULL)
        return lt__fail_oom(err, total, "the vocabulary");
    tk->bytes_size = total;
    tk->off = lt__alloc_array(tk->ctx, (size_t)tk->n + 1, sizeof *tk->off);
    tk->kind = lt__zalloc(tk->ctx, tk->n);
    if (tk->off == NULL || tk->kind == NULL)
        return lt__fail_oom(err, tk->n * 5u, "the vocabulary");
    uint32_t at = 0;
    for (uint32_t i = 0; i < tk->n; i++) {
        tk->off[i] = at;
        memcpy(tk->bytes + at, d->tokens[i], d->token_len[i]);
        at += d->token_len[i];
        tk->bytes[at++] = '\0';
    }
    tk->off[tk->n] = at;
    return LT_OK;
}

static lt_status enter_piece(lt_tokenizer *tk, uint32_t id, uint32_t h, const char *file, lt_err *err)
{
    uint32_t i = h & tk->slot_mask;
    for (; tk->slots[i].id1 != 0; i = (i + 1) & tk->slot_mask) {
        if (tk->slots[i].hash != h)
            continue;
        uint32_t len, other_len, other = tk->slots[i].id1 - 1;
        const char *s = lt__piece(tk, id, &len), *o = lt__piece(tk, other, &other_len);
        char q[160];
        if (other_len == len && memcmp(o, s, len) == 0)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.tokens has \"%s\" twice, as %u and %u",
                            file, lt__quote(q, sizeof q, s, len), other, id);
    }
    tk->slots[i].hash = h;
    tk->slots[i].id1 = id + 1;
    return LT_OK;
}

static lt_status index_pieces(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    uint64_t slots = 64;
    while (slots < (uint64_t)tk->n * 2)
        slots *= 2;
    tk->slots = lt__alloc_array(tk->ctx, slots, sizeof *tk->slots);
    if (tk->slots == NULL)
        return lt__fail_oom(err, slots * sizeof *tk->slots, "the vocabulary's index");
    tk->slot_mask = (uint32_t)(slots - 1);
    /* Hashes are made a block ahead so that the slots, which lie anywhere, are on their way. */
    enum { AHEAD = 32 };
    uint32_t hash[AHEAD];
    for (uint32_t from = 0; from < tk->n; from += AHEAD) {
        uint32_t n = tk->n - from < AHEAD ? tk->n - from : AHEAD;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t len;
            const char *s = lt__piece(tk, from + k, &len);
            hash[k] = lt__hash_bytes(s, len);
            __builtin_prefetch(&tk->slots[hash[k] & tk->slot_mask], 1);
        }
        for (uint32_t k = 0; k < n; k++) {
            lt_status status = enter_piece(tk, from + k, hash[k], d->file, err);
            if (status != LT_OK)
                return status;
        }
    }
    return LT_OK;
}

static lt_status set_kinds(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    static const uint8_t kinds[7] = {0, LT_TOKEN_NORMAL, LT_TOKEN_UNKNOWN, LT_TOKEN_CONTROL,
                                     LT_TOKEN_USER, LT_TOKEN_UNUSED, LT_TOKEN_BYTE};
    if (d->types != NULL) {
        if (d->n_types != d->n_tokens)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.token_type has %llu entries, expected %llu, one a token",
                            d->file, (unsigned long long)d->n_types, (unsigned long long)d->n_tokens);
        for (uint32_t i = 0; i < tk->n; i++) {
            if (d->types[i] < 1 || d->types[i] > 6)
                return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.token_type[%u] is %lld, expected 1 to 6",
                                d->file, i, (long long)d->types[i]);
            tk->kind[i] = kinds[d->types[i]];
            tk->has_unused |= tk->kind[i] == LT_TOKEN_UNUSED;
        }
        return LT_OK;
    }
    const int64_t ids[] = {d->bos, d->eos, d->eot, d->eom};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i] >= 0)
            tk->kind[ids[i]] = LT_TOKEN_CONTROL;
    if (d->unk >= 0)
        tk->kind[d->unk] = LT_TOKEN_UNKNOWN;
    return LT_OK;
}

static lt_status check_id(const lt__vocab_desc *d, const char *key, int64_t id, lt_err *err)
{
    if (id >= (int64_t)d->n_tokens)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.%s_token_id is %lld, expected less than %llu, the vocabulary's size",
                        d->file, key, (long long)id, (unsigned long long)d->n_tokens);
    return LT_OK;
}

static lt_status check_ids(const lt__vocab_desc *d, lt_err *err)
{
    const struct { const char *key; int64_t id; } rows[] = {
        {"bos", d->bos}, {"eos", d->eos}, {"eot", d->eot}, {"eom", d->eom}, {"unknown", d->unk}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_status s = check_id(d, rows[i].key, rows[i].id, err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

static void set_ends(lt_tokenizer *tk, const lt__vocab_desc *d)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
                                        "<end_of_turn>", "<|end|>", "<|return|>", "<|call|>", "<|eot|>", "</s>", "<eos>"};
    int32_t ids[sizeof names / sizeof *names + 3];
    uint32_t n = 0;
    ids[n++] = (int32_t)d->eos;
    ids[n++] = (int32_t)d->eot;
    ids[n++] = (int32_t)d->eom;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = lt__vocab_find(tk, names[i], strlen(names[i]));
        bool special = id >= 0 && (tk->kind[id] == LT_TOKEN_CONTROL || tk->kind[id] == LT_TOKEN_USER);
        ids[n++] = special ? id : -1;
    }
    /* gpt-oss ends each message of an answer with <|end|>, its thoughts too, and the answer with another. */
    int32_t message_end = lt__vocab_find(tk, "<|channel|>", 11) >= 0 && lt__vocab_find(tk, "<|return|>", 10) >= 0
                              ? lt__vocab_find(tk, "<|end|>", 7) : -1;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] != message_end && !lt_tokenizer_ends(tk, ids[i]))
            tk->ends[tk->n_ends++] = ids[i];
}

static int compare_special(const lt_tokenizer *tk, const struct lt__special *a, const struct lt__special *b)
{
    int c = memcmp(tk->special_text + a->at, tk->special_text + b->at, a->len < b->len ? a->len : b->len);
    if (c != 0)
        return c;
    return a->len != b->len ? (a->len > b->len) - (a->len < b->len) : (a->id > b->id) - (a->id < b->id);
}

/* Heapsort: qsort would allocate behind the context's back. */
static void sort_special(const lt_tokenizer *tk, struct lt__special *v, uint32_t n)
{
    for (uint32_t end = n, start = n / 2; end > 1;) {
        struct lt__special x;
        if (start > 0) {
            x = v[--start];
        } else {
            x = v[--end];
            v[end] = v[0];
        }
        uint32_t hole = start;
        for (uint32_t child; (child = 2 * hole + 1) < end; hole = child) {
            if (child + 1 < end && compare_special(tk, &v[child + 1], &v[child]) > 0)
                child++;
            if (compare_special(tk, &v[child], &x) <= 0)
                break;
            v[hole] = v[child];
        }
        v[hole] = x;
    }
}

static uint32_t spell(const lt_tokenizer *tk, uint32_t id, char *out)
{
    uint32_t len, o = 0;
    const char *s = lt__piece(tk, id, &len);
    for (uint32_t i = 0; i < len;) {
        bool space = tk->spm && len - i >= 3 && memcmp(s + i, LT__METASPACE, 3) == 0;
        out[o++] = space ? ' ' : s[i];
        i += space ? 3 : 1;
    }
    return o;
}

static bool is_special(const lt_tokenizer *tk, uint32_t id)
{
    return tk->kind[id] == LT_TOKEN_CONTROL || tk->kind[id] == LT_TOKEN_USER || tk->kind[id] == LT_TOKEN_UNKNOWN;
}

static lt_status index_special(lt_tokenizer *tk, lt_err *err)
{
    uint32_t n = 0, bytes = 0;
    for (uint32_t i = 0; i < tk->n; i++)
        if (is_special(tk, i)) {
            n++;
            bytes += tk->off[i + 1] - tk->off[i] - 1;
        }
    if (n == 0)
        return LT_OK;
    tk->special = lt__alloc_array(tk->ctx, n, sizeof *tk->special);
    tk->n_special = n;
    tk->special_text = lt__alloc(tk->ctx, bytes);
    tk->special_bytes = bytes;
    if (tk->special == NULL || tk->special_text == NULL)
        return lt__fail_oom(err, n * sizeof *tk->special + bytes, "the special tokens' index");
    uint32_t at = 0, k = 0;
    for (uint32_t i = 0; i < tk->n; i++)
        if (is_special(tk, i)) {
            uint32_t len = spell(tk, i, tk->special_text + at);
            tk->special[k++] = (struct lt__special){at, len, i};
            at += len;
        }
    sort_special(tk, tk->special, n);
    for (unsigned b = 0, i = 0; b <= 256; b++) {
        while (b > 0 && i < n && (unsigned char)tk->special_text[tk->special[i].at] < b)
            i++;
        tk->special_first[b] = i;
    }
    return LT_OK;
}

/* The first of special[lo..hi), which agree before `depth`, whose byte there is at least c. */
static uint32_t first_at_least(const lt_tokenizer *tk, uint32_t lo, uint32_t hi, uint32_t depth, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)tk->special_text[tk->special[mid].at + depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t lt__special_match(const lt_tokenizer *tk, const char *p, size_t n, bool control, int32_t *id)
{
    unsigned c = (unsigned char)p[0];
    uint32_t lo = tk->special_first[c], hi = tk->special_first[c + 1];
    size_t best = 0;
    for (uint32_t depth = 1; lo < hi; depth++) {
        for (; lo < hi && tk->special[lo].len == depth; lo++)
            if (best < depth && (control || tk->kind[tk->special[lo].id] == LT_TOKEN_USER)) {
                best = depth;
                *id = (int32_t)tk->special[lo].id;
            }
        if (depth >= n)
            break;
        c = (unsigned char)p[depth];
        lo = first_at_least(tk, lo, hi, depth, c);
        hi = first_at_least(tk, lo, hi, depth, c + 1);
    }
    return best;
}

static lt_status build_merges(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    uint64_t slots = 64;
    while (slots < d->n_merges * 2)
        slots *= 2;
    tk->merges = lt__alloc_array(tk->ctx, slots, sizeof *tk->merges);
    if (tk->merges == NULL)
        return lt__fail_oom(err, slots * sizeof *tk->merges, "the merge table");
    tk->merge_slots = slots;
    for (uint64_t i = 0; i < slots; i++)
        tk->merges[i].rank = LT__NO_RANK;
    char join[2 * UINT16_MAX];
    for (uint32_t r = 0; r < d->n_merges; r++) {
        const char *s = d->merges[r];
        size_t n = d->merge_len[r];
        const char *gap = n > 2 ? memchr(s + 1, ' ', n - 2) : NULL;
        char q[160];
        if (gap == NULL || n > sizeof join)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.merges[%u] is \"%s\", expected two pieces and a space between",
                            d->file, r, lt__quote(q, sizeof q, s, n));
        size_t left = (size_t)(gap - s), right = n - left - 1;
        memcpy(join, s, left);
        memcpy(join + left, gap + 1, right);
        int32_t a = lt__vocab_find(tk, s, left), b = lt__vocab_find(tk, gap + 1, right);
        int32_t m = lt__vocab_find(tk, join, left + right);
        if (a < 0 || b < 0 || m < 0)
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.merges[%u] is \"%s\", but %s is not in the vocabulary",
                            d->file, r, lt__quote(q, sizeof q, s, n),
                            a < 0 ? "its left piece" : b < 0 ? "its right piece" : "the joined piece");
        uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b, i = lt__pair_hash(pair) & (slots - 1);
        while (tk->merges[i].rank != LT__NO_RANK && tk->merges[i].pair != pair)
            i = (i + 1) & (slots - 1);
        /* Of a pair named twice the later rank counts, as in the vendors' library. */
        tk->merges[i] = (lt__merge){pair, r, (uint32_t)m};
    }
    return LT_OK;
}

static lt_status build_bpe(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    if (d->n_merges >= LT__NO_RANK)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.merges has %llu entries, expected less than 2^32 - 1",
                        d->file, (unsigned long long)d->n_merges);
    uint32_t have = 0;
    for (unsigned b = 0; b < 256; b++) {
        char s[4];
        int32_t id = lt__vocab_find(tk, s, lt__utf8_put(lt__byte_letter((uint8_t)b), s));
        if (id >= 0 && tk->kind[id] == LT_TOKEN_CONTROL)
            id = -1;
        tk->byte_id[b] = id;
        have += id >= 0;
    }
    if (have == 0)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.tokens has none of the 256 letters of byte-level BPE (tokenizer.ggml.model is \"%s\")",
                        d->file, d->model);
    tk->byte_tokens = have == 256;
    return build_merges(tk, d, err);
}

static lt_status set_bytes(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    uint32_t have = 0;
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        int32_t id = lt__vocab_find(tk, s, 6);
        if (id >= 0 && (tk->kind[id] == LT_TOKEN_BYTE || d->types == NULL)) {
            tk->kind[id] = LT_TOKEN_BYTE;
            tk->byte_id[b] = id;
            have++;
        }
    }
    uint32_t typed = 0;
    for (uint32_t i = 0; i < tk->n; i++)
        typed += tk->kind[i] == LT_TOKEN_BYTE;
    if (typed != have)
        return lt__fail(err, LT_E_FORMAT, "%s: %u tokens are of type 6 (byte), but only %u of them are spelled <0x00> to <0xFF>",
                        d->file, typed, have);
    if (have != 0 && have != 256)
        return lt__fail(err, LT_E_FORMAT, "%s: the vocabulary has %u byte tokens, expected none or all 256", d->file, have);
    if (have == 0 && tk->unk < 0)
        return lt__fail(err, LT_E_FORMAT, "%s: the vocabulary has neither byte tokens nor tokenizer.ggml.unknown_token_id, so some text cannot be encoded",
                        d->file);
    tk->byte_tokens = have == 256;
    return LT_OK;
}

static lt_status build_spm(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    if (d->scores == NULL || d->n_scores != d->n_tokens)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.scores has %llu entries, expected %llu, one a token",
                        d->file, (unsigned long long)(d->scores != NULL ? d->n_scores : 0), (unsigned long long)d->n_tokens);
    tk->scores = lt__alloc_array(tk->ctx, tk->n, sizeof *tk->scores);
    if (tk->scores == NULL)
        return lt__fail_oom(err, tk->n * sizeof *tk->scores, "the scores");
    for (uint32_t i = 0; i < tk->n; i++) {
        if (isnan(d->scores[i]))
            return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.scores[%u] is not a number", d->file, i);
        tk->scores[i] = (float)d->scores[i];
    }
    /* Where U+2581 stands inside a piece, merges may cross it. */
    for (uint32_t i = 0; i < tk->n; i++) {
        uint32_t len;
        const char *s = lt__piece(tk, i, &len);
        for (uint32_t k = 1; k + 3 <= len; k++)
            if ((unsigned char)s[k] == 0xe2 && memcmp(s + k, LT__METASPACE, 3) == 0)
                tk->crosses[(unsigned char)s[k - 1]] = 1;
    }
    return set_bytes(tk, d, err);
}

/* Which split rule a file means that does not say: only where vocabulary and architecture leave no doubt. */
static const char *infer_pre(const lt_tokenizer *tk, const lt__vocab_desc *d)
{
    const struct { const char *arch, *a, *b; uint32_t n_min, n_max; const char *pre; } rows[] = {
        {"llama", "<|begin_of_text|>", "<|eot_id|>", 128256, 128300, "llama-bpe"},
        {"llama", "[INST]", "[AVAILABLE_TOOLS]", 131072, 131072, "tekken"},
        {"llama", "<|im_start|>", "<jupyter_start>", 49152, 49160, "smollm"},
        {"qwen2", "<|im_start|>", "<|endoftext|>", 151643, 152064, "qwen2"},
        {"qwen3", "<|im_start|>", "<|endoftext|>", 151643, 152064, "qwen2"},
        {"qwen2moe", "<|im_start|>", "<|endoftext|>", 151643, 152064, "qwen2"},
        {"qwen3moe", "<|im_start|>", "<|endoftext|>", 151643, 152064, "qwen2"},
        {"phi3", "<|endoftext|>", "<|endofprompt|>", 199999, 200064, "gpt-4o"},
        {"gpt-oss", "<|startoftext|>", "<|return|>", 200000, 201088, "gpt-4o"},
        {"gpt2", "<|endoftext|>", "\xc4\xa0the", 50257, 50304, "gpt-2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (d->arch != NULL && strcmp(d->arch, rows[i].arch) == 0 && tk->n >= rows[i].n_min && tk->n <= rows[i].n_max &&
            lt__vocab_find(tk, rows[i].a, strlen(rows[i].a)) >= 0 && lt__vocab_find(tk, rows[i].b, strlen(rows[i].b)) >= 0)
            return rows[i].pre;
    return NULL;
}

static lt_status choose_rule(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    const char *pre = d->pre;
    if (pre == NULL || pre[0] == '\0' || strcmp(pre, "default") == 0) {
        const char *said = pre == NULL ? "is missing" : pre[0] == '\0' ? "is empty" : "is \"default\"";
        pre = infer_pre(tk, d);
        if (pre == NULL)
            return lt__fail(err, LT_E_UNSUPPORTED,
                            "%s: tokenizer.ggml.pre %s and neither the architecture \"%s\" nor its %u tokens tell which split rule the model was trained with; set the key to the model's own rule",
                            d->file, said, d->arch != NULL ? d->arch : "", tk->n);
        lt__log(tk->ctx, LT_LOG_WARN, "text",
                "%s: tokenizer.ggml.pre %s; the vocabulary and the architecture are those of \"%s\", whose rule is used",
                d->file, said, pre);
    }
    tk->rule = lt__split_rule_find(pre);
    char q[160];
    if (tk->rule == NULL)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: tokenizer.ggml.pre is \"%s\", a split rule this version does not know",
                        d->file, lt__quote(q, sizeof q, pre, strlen(pre)));
    snprintf(tk->name, sizeof tk->name, "bpe %s", lt__split_rule_name(tk->rule));
    return lt__split_create(tk->ctx, tk->rule, &tk->split, err);
}

lt__vocab_desc lt__vocab_desc_default(void)
{
    return (lt__vocab_desc){.file = "vocabulary", .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unk = -1,
                            .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
}

static lt_status build(lt_tokenizer *tk, const lt__vocab_desc *d, lt_err *err)
{
    lt_status s;
    if ((s = check_ids(d, err)) != LT_OK || (s = copy_pieces(tk, d, err)) != LT_OK ||
        (s = index_pieces(tk, d, err)) != LT_OK || (s = set_kinds(tk, d, err)) != LT_OK)
        return s;
    tk->bos = (int32_t)d->bos;
    tk->eos = (int32_t)d->eos;
    tk->unk = (int32_t)d->unk;
    if (tk->spm) {
        strcpy(tk->name, "spm");
        s = build_spm(tk, d, err);
    } else {
        s = build_bpe(tk, d, err);
        if (s == LT_OK)
            s = choose_rule(tk, d, err);
    }
    if (s != LT_OK)
        return s;
    tk->add_bos = d->add_bos >= 0 ? d->add_bos != 0 : tk->spm || lt__split_rule_bos(tk->rule);
    tk->add_eos = d->add_eos > 0;
    tk->space_prefix = tk->spm && d->add_space_prefix != 0;
    /* Phi 3's added tokens swallow the white space after them; no key says so. */
    tk->rstrip = tk->spm && d->arch != NULL && strcmp(d->arch, "phi3") == 0;
    if (d->add_bos > 0 && tk->bos < 0)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id", d->file);
    if (tk->add_eos && tk->eos < 0)
        return lt__fail(err, LT_E_FORMAT, "%s: tokenizer.ggml.add_eos_token is true, but there is no tokenizer.ggml.eos_token_id", d->file);
    set_ends(tk, d);
    return index_special(tk, err);
}

lt_status lt__tokenizer_build(lt_ctx *ctx, const lt__vocab_desc *d, lt_tokenizer **out, lt_err *err)
{
    *out = NULL;
    bool spm = d->model != NULL && strcmp(d->model, "llama") == 0;
    if (!spm && (d->model == NULL || strcmp(d->model, "gpt2") != 0))
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: tokenizer.ggml.model is \"%.64s\", expected \"llama\" (SentencePiece) or \"gpt2\" (byte-level BPE)",
                        d->file, d->model != NULL ? d->model : "");
    lt_tokenizer *tk = lt__zalloc(ctx, sizeof *tk);
    if (tk == NULL)
        return lt__fail_oom(err, sizeof *tk, "the tokenizer");
    tk->ctx = ctx;
    tk->spm = spm;
    memset(tk->byte_id, 0xff, sizeof tk->byte_id);
    lt_status s = build(tk, d, err);
    if (s != LT_OK) {
        lt_tokenizer_destroy(tk);
        return s;
    }
    *out = tk;
    return LT_OK;
}

void lt_tokenizer_destroy(lt_tokenizer *tk)
{
    if (tk == NULL)
        return;
    lt_ctx *ctx = tk->ctx;
    lt__split_destroy(tk->split);
    lt__free(ctx, tk->merges, tk->merge_slots * sizeof *tk->merges);
    lt__free(ctx, tk->special, tk->n_special * sizeof *tk->special);
    lt__free(ctx, tk->special_text, tk->special_bytes);
    if (tk->slots != NULL)
        lt__free(ctx, tk->slots, ((size_t)tk->slot_mask + 1) * sizeof *tk->slots);
    lt__free(ctx, tk->scores, tk->n * sizeof *tk->scores);
    lt__free(ctx, tk->kind, tk->n);
    lt__free(ctx, tk->off, ((size_t)tk->n + 1) * sizeof *tk->off);
    lt__free(ctx, tk->bytes, tk->bytes_size);
    lt__free(ctx, tk, sizeof *tk);
}
