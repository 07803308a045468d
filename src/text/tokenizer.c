/* tokenizer.c - from a model file's keys to a vocabulary; special pieces cut out first, the rest
 * goes to the engine. */
#include "text/text.h"

static lt_status want_array(const lt_modelfile *f, const char *file, const char *name, bool required,
                            const lt_key **out, lt_err *err)
{
    const lt_key *k = lt_modelfile_key(f, name);
    *out = k;
    if (k == NULL && required)
        return lt__fail(err, LT_E_FORMAT, "%s: key %s is missing, expected an array", file, name);
    if (k != NULL && k->type != LT_KEY_ARRAY)
        return lt__fail(err, LT_E_FORMAT, "%s: key %s is not an array", file, name);
    return LT_OK;
}

static lt_status want_strings(const lt_modelfile *f, const char *file, const char *name, bool required,
                              const char *const **v, const uint32_t **len, uint64_t *n, lt_err *err)
{
    const lt_key *k;
    lt_status s = want_array(f, file, name, required, &k, err);
    if (s != LT_OK || k == NULL || (k->n == 0 && !required))
        return s;
    if (k->elem_type != LT_KEY_STRING)
        return lt__fail(err, LT_E_FORMAT, "%s: key %s is an array of another type, expected strings", file, name);
    *v = k->v.s;
    *len = k->s_len;
    *n = k->n;
    return LT_OK;
}

static lt_status want_id(const lt_modelfile *f, const char *file, const char *name, int64_t *out, lt_err *err)
{
    const lt_key *k = lt_modelfile_key(f, name);
    if (k == NULL)
        return LT_OK;
    if (k->type == LT_KEY_INT && k->v.i[0] == -1) /* written by some tools for "none" */
        return LT_OK;
    /* The value is quoted in the sentence about the vocabulary's size. */
    if (k->type == LT_KEY_UINT)
        *out = k->v.u[0] > INT64_MAX ? INT64_MAX : (int64_t)k->v.u[0];
    else if (k->type == LT_KEY_INT && k->v.i[0] >= 0)
        *out = k->v.i[0];
    else
        return lt__fail(err, LT_E_FORMAT, "%s: key %s is not a token id", file, name);
    return LT_OK;
}

static lt_status want_bool(const lt_modelfile *f, const char *file, const char *name, int *out, lt_err *err)
{
    const lt_key *k = lt_modelfile_key(f, name);
    if (k == NULL)
        return LT_OK;
    if (k->type != LT_KEY_BOOL)
        return lt__fail(err, LT_E_FORMAT, "%s: key %s is not a bool", file, name);
    *out = k->v.b[0];
    return LT_OK;
}

static lt_status read_keys(const lt_modelfile *f, lt__vocab_desc *d, lt_err *err)
{
    const char *file = d->file;
    const lt_key *types, *scores;
    const struct { const char *name; const char **out; } strings[] = {
        {"general.architecture", &d->arch}, {"tokenizer.ggml.model", &d->model}, {"tokenizer.ggml.pre", &d->pre}};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        const lt_key *k = lt_modelfile_key(f, strings[i].name);
        if (k != NULL && k->type != LT_KEY_STRING)
            return lt__fail(err, LT_E_FORMAT, "%s: key %s is not a string", file, strings[i].name);
        *strings[i].out = k != NULL ? k->v.s[0] : NULL;
    }
    lt_status s;
    if (d->model == NULL)
        return lt__fail(err, LT_E_FORMAT, "%s: key tokenizer.ggml.model is missing: the file holds no tokenizer", file);
    if ((s = want_strings(f, file, "tokenizer.ggml.tokens", true, &d->tokens, &d->token_len, &d->n_tokens, err)) != LT_OK ||
        (s = want_strings(f, file, "tokenizer.ggml.merges", false, &d->merges, &d->merge_len, &d->n_merges, err)) != LT_OK ||
        (s = want_array(f, file, "tokenizer.ggml.token_type", false, &types, err)) != LT_OK ||
        (s = want_array(f, file, "tokenizer.ggml.scores", false, &scores, err)) != LT_OK)
        return s;
    if (types != NULL) {
        if (types->elem_type != LT_KEY_INT && types->elem_type != LT_KEY_UINT)
            return lt__fail(err, LT_E_FORMAT, "%s: key tokenizer.ggml.token_type is an array of another type, expected integers", file);
        d->types = types->v.i; /* unsigned or not, 1 to 6 are the same bits */
        d->n_types = types->n;
    }
    if (scores != NULL) {
        if (scores->elem_type != LT_KEY_FLOAT)
            return lt__fail(err, LT_E_FORMAT, "%s: key tokenizer.ggml.scores is an array of another type, expected floats", file);
        d->scores = scores->v.f;
        d->n_scores = scores->n;
    }
    int tidy = -1;
    if ((s = want_id(f, file, "tokenizer.ggml.bos_token_id", &d->bos, err)) != LT_OK ||
        (s = want_id(f, file, "tokenizer.ggml.eos_token_id", &d->eos, err)) != LT_OK ||
        (s = want_id(f, file, "tokenizer.ggml.eot_token_id", &d->eot, err)) != LT_OK ||
        (s = want_id(f, file, "tokenizer.ggml.eom_token_id", &d->eom, err)) != LT_OK ||
        (s = want_id(f, file, "tokenizer.ggml.unknown_token_id", &d->unk, err)) != LT_OK ||
        (s = want_bool(f, file, "tokenizer.ggml.add_bos_token", &d->add_bos, err)) != LT_OK ||
        (s = want_bool(f, file, "tokenizer.ggml.add_eos_token", &d->add_eos, err)) != LT_OK ||
        (s = want_bool(f, file, "tokenizer.ggml.add_space_prefix", &d->add_space_prefix, err)) != LT_OK ||
        (s = want_bool(f, file, "tokenizer.ggml.remove_extra_whitespaces", &tidy, err)) != LT_OK)
        return s;
    if (tidy > 0)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: tokenizer.ggml.remove_extra_whitespaces is true, expected false: such a normaliser is not built in", file);
    return LT_OK;
}

lt_status lt_tokenizer_create(lt_ctx *ctx, const lt_modelfile *f, lt_tokenizer **out, lt_err *err)
{
    lt__vocab_desc d = lt__vocab_desc_default();
    *out = NULL;
    d.file = lt_modelfile_part_path(f, 0);
    lt_status s = read_keys(f, &d, err);
    return s == LT_OK ? lt__tokenizer_build(ctx, &d, out, err) : s;
}

uint32_t lt_tokenizer_vocab(const lt_tokenizer *tk) { return tk->n; }
const char *lt_tokenizer_kind(const lt_tokenizer *tk) { return tk->name; }
int32_t lt_tokenizer_bos(const lt_tokenizer *tk) { return tk->bos; }
int32_t lt_tokenizer_eos(const lt_tokenizer *tk) { return tk->eos; }

bool lt_tokenizer_ends(const lt_tokenizer *tk, int32_t id)
{
    for (uint32_t i = 0; i < tk->n_ends; i++)
        if (tk->ends[i] == id)
            return true;
    return false;
}

const char *lt_tokenizer_piece(const lt_tokenizer *tk, int32_t id, size_t *bytes, lt_token_kind *kind)
{
    if (id < 0 || (uint32_t)id >= tk->n)
        return NULL;
    uint32_t n;
    const char *s = lt__piece(tk, (uint32_t)id, &n);
    if (bytes != NULL)
        *bytes = n;
    if (kind != NULL)
        *kind = (lt_token_kind)tk->kind[id];
    return s;
}

int32_t lt_tokenizer_find(const lt_tokenizer *tk, const char *piece)
{
    return lt__vocab_find(tk, piece, strlen(piece));
}

void lt_tokens_clear(lt_tokens *t)
{
    if (t->ctx != NULL)
        lt__free(t->ctx, t->v, t->cap * sizeof *t->v);
    *t = (lt_tokens){0};
}

lt_status lt__push_id(const lt_tokenizer *tk, lt_tokens *out, int32_t id, lt_err *err)
{
    if (out->n == out->cap) {
        lt_status s = lt__grow(tk->ctx, (void **)&out->v, &out->cap, out->n + 1, sizeof *out->v, err);
        if (s != LT_OK)
            return s;
    }
    out->v[out->n++] = id;
    return LT_OK;
}

bool lt__cache_find(lt__job *j, const char *word, size_t n, lt__cached **slot, lt_status *status, lt_err *err)
{
    *slot = NULL;
    if (j->cache == NULL || n > LT__CACHE_WORD)
        return false;
    uint32_t h = lt__hash_bytes(word, n);
    lt__cached *c = &j->cache[h & (LT__CACHE_SLOTS - 1)];
    *slot = c;
    if (c->hash != h || c->len != n || memcmp(c->word, word, n) != 0)
        return false;
    *status = LT_OK;
    for (uint32_t i = 0; i < c->n && *status == LT_OK; i++)
        *status = lt__push_id(j->tk, j->out, j->out->v[c->at + i], err);
    return true;
}

void lt__cache_keep(lt__job *j, lt__cached *slot, const char *word, size_t n, size_t before)
{
    size_t made = j->out->n - before;
    if (n == 0 || made > UINT8_MAX || before > UINT32_MAX)
        return;
    *slot = (lt__cached){lt__hash_bytes(word, n), (uint32_t)before, (uint8_t)n, (uint8_t)made, {0}};
    memcpy(slot->word, word, n);
}

/* SentencePiece sees U+2581 for each space, and in some families one more in front. */
static lt_status encode_spaces(lt__job *j, const char *text, size_t n, bool prefix, lt_err *err)
{
    const lt_tokenizer *tk = j->tk;
    size_t spaces = prefix, o = 0;
    for (size_t i = 0; i < n; i++)
        spaces += text[i] == ' ';
    size_t bytes = n + 2 * spaces + prefix;
    char *s = lt__alloc(tk->ctx, bytes);
    if (s == NULL)
        return lt__fail_oom(err, bytes, "encoding text");
    if (prefix) {
        memcpy(s, LT__METASPACE, 3);
        o = 3;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            memcpy(s + o, LT__METASPACE, 3);
            o += 3;
        } else {
            s[o++] = text[i];
        }
    }
    lt_status status = lt__spm_encode(j, s, bytes, err);
    lt__free(tk->ctx, s, bytes);
    return status;
}

static lt_status encode_plain(lt__job *j, const char *text, size_t n, bool prefix, lt_err *err)
{
    if (n == 0)
        return LT_OK;
    return j->tk->spm ? encode_spaces(j, text, n, prefix, err) : lt__bpe_encode(j, text, n, err);
}

/* Phi 3: white space behind an added token belongs to it. */
static size_t swallow(const lt_tokenizer *tk, int32_t id, const char *text, size_t n)
{
    uint32_t len;
    const char *s = lt__piece(tk, (uint32_t)id, &len);
    if (!tk->rstrip || tk->kind[id] == LT_TOKEN_UNKNOWN || id == tk->bos || strcmp(s, "<|endoftext|>") == 0)
        return 0;
    size_t i = 0;
    while (i < n) {
        if ((text[i] < '\t' || text[i] > '\r') && text[i] != ' ')
            break;
        i++;
    }
    return i;
}

static lt_status encode_parts(lt__job *j, const char *text, size_t n, bool control, lt_err *err)
{
    const lt_tokenizer *tk = j->tk;
    size_t from = 0, at = 0;
    bool prefix = tk->space_prefix;
    lt_status s = LT_OK;
    while (at < n && s == LT_OK) {
        unsigned char c = (unsigned char)text[at];
        int32_t id = -1;
        size_t k = tk->special_first[c] == tk->special_first[c + 1]
            ? 0 : lt__special_match(tk, text + at, n - at, control, &id);
        if (k == 0) {
            at++;
            continue;
        }
        s = encode_plain(j, text + from, at - from, prefix, err);
        if (s == LT_OK)
            s = lt__push_id(tk, j->out, id, err);
        at += k;
        at += swallow(tk, id, text + at, n - at);
        from = at;
        prefix = tk->space_prefix;
    }
    if (s == LT_OK)
        s = encode_plain(j, text + from, n - from, prefix, err);
    return s;
}

/* To SentencePiece a U+2581 in the text and a space are the same. */
static lt_status encode_spm(lt__job *j, const char *text, size_t n, bool control, lt_err *err)
{
    const lt_tokenizer *tk = j->tk;
    if (memmem(text, n, LT__METASPACE, 3) == NULL)
        return encode_parts(j, text, n, control, err);
    char *s = lt__alloc(tk->ctx, n);
    if (s == NULL)
        return lt__fail_oom(err, n, "encoding text");
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        bool space = n - i >= 3 && memcmp(text + i, LT__METASPACE, 3) == 0;
        s[o++] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    lt_status status = encode_parts(j, s, o, control, err);
    lt__free(tk->ctx, s, n);
    return status;
}

lt_status lt_tokenizer_encode(const lt_tokenizer *tk, const char *text, size_t bytes, unsigned flags,
                              lt_tokens *out, lt_err *err)
{
    if (flags & ~(unsigned)(LT_ENCODE_BOS | LT_ENCODE_SPECIAL))
        return lt__fail(err, LT_E_INVALID, "encode flags are 0x%x, expected a sum of LT_ENCODE_ values", flags);
    if (bytes > INT32_MAX / 4)
        return lt__fail(err, LT_E_INVALID, "text to encode has %zu bytes, expected at most %d", bytes, INT32_MAX / 4);
    if (out->ctx != NULL && out->ctx != tk->ctx)
        return lt__fail(err, LT_E_INVALID, "the token list belongs to another context than the tokenizer");
    size_t before = out->n;
    out->ctx = tk->ctx;
    lt__job j = {.tk = tk, .out = out};
    /* Where memory for it is short, words are merged anew each time: the ids are the same. */
    if (bytes > 512)
        j.cache = lt__alloc_array(tk->ctx, LT__CACHE_SLOTS, sizeof *j.cache);
    lt_status s = LT_OK;
    if (flags & LT_ENCODE_BOS && tk->add_bos && tk->bos >= 0)
        s = lt__push_id(tk, out, tk->bos, err);
    if (s == LT_OK && bytes > 0)
        s = tk->spm ? encode_spm(&j, text, bytes, flags & LT_ENCODE_SPECIAL, err)
                    : encode_parts(&j, text, bytes, flags & LT_ENCODE_SPECIAL, err);
    if (s == LT_OK && flags & LT_ENCODE_BOS && tk->add_eos)
        s = lt__push_id(tk, out, tk->eos, err);
    lt__free(tk->ctx, j.cache, LT__CACHE_SLOTS * sizeof *j.cache);
    if (s != LT_OK)
        out->n = before;
    return s;
}
