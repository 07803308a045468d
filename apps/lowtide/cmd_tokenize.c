/* cmd_tokenize.c - text to token ids, and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

static void print_ids(const app *a, const lt_tokens *t)
{
    if (a->o->v[OPT_json].set) {
        json_t *ids = json_array();
        for (size_t i = 0; i < t->n; i++)
            json_array_append_new(ids, json_integer(t->v[i]));
        json_t *j = json_pack("{s:o}", "tokens", ids);
        json_dumpf(j, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(j);
        return;
    }
    for (size_t i = 0; i < t->n; i++) {
        size_t n;
        lt_token_kind kind;
        const char *piece = lt_tokenizer_piece(a->tok, t->v[i], &n, &kind);
        printf("%7d  %s%.*s\n", t->v[i], kind == LT_TOKEN_CONTROL ? "(control) " : "", (int)n, piece);
    }
}

static lt_status encode(app *a)
{
    char *text;
    size_t bytes;
    lt_tokens t = {0};
    lt_status s = app_text(a, &text, &bytes);
    if (s != LT_OK)
        return s;
    unsigned flags = a->o->v[OPT_no_special].set ? LT_ENCODE_PLAIN : LT_ENCODE_BOS | LT_ENCODE_SPECIAL;
    s = lt_tokenizer_encode(a->tok, text, bytes, flags, &t, &a->err);
    if (s == LT_OK)
        print_ids(a, &t);
    lt_tokens_clear(&t);
    free(text);
    return s;
}

static lt_status bad_id(app *a, const char *at)
{
    snprintf(a->err.text, sizeof a->err.text, "--decode: '%.40s': expected token ids from 0 to %u, separated by spaces or commas",
             at, lt_tokenizer_vocab(a->tok) - 1);
    return a->err.status = LT_E_INVALID;
}

static lt_status decode(app *a)
{
    char *list = NULL;
    size_t list_bytes;
    lt_status s = app_ids_text(a, &list, &list_bytes);
    if (s != LT_OK)
        return s;
    int32_t *ids = malloc((strlen(list) / 2 + 1) * sizeof *ids);
    size_t n = 0, bytes;
    char *text;
    if (!ids) {
        snprintf(a->err.text, sizeof a->err.text, "no memory for %zu bytes of ids", list_bytes);
        free(list);
        return a->err.status = LT_E_HOST_OOM;
    }
    for (char *p = list + strspn(list, " ,[]\n\t"); *p; p += strspn(p, " ,[]\n\t")) {
        char *end;
        errno = 0;
        unsigned long id = strtoul(p, &end, 10);
        if (end == p || errno || *p < '0' || *p > '9' || id >= lt_tokenizer_vocab(a->tok) || !strchr(" ,[]\n\t", *end)) {
            s = bad_id(a, p);
            free(ids);
            free(list);
            return s;
        }
        ids[n++] = (int32_t)id;
        p = end;
    }
    free(list);
    s = lt_tokenizer_decode(a->tok, ids, n, !a->o->v[OPT_no_special].set, &text, &bytes, &a->err);
    free(ids);
    if (s != LT_OK)
        return s;
    if (a->o->v[OPT_json].set) {
        json_t *str = json_stringn(text, bytes);
        if (!str) {
            snprintf(a->err.text, sizeof a->err.text, "these tokens are not UTF-8 text, which JSON needs; without --json the bytes are printed as they are");
            s = a->err.status = LT_E_INVALID;
        } else {
            app_print_json(json_pack("{s:o}", "text", str));
        }
    } else {
        fwrite(text, 1, bytes, stdout);
    }
    lt_tokenizer_free_text(a->tok, text, bytes);
    return s;
}

int cmd_tokenize(const opts *o)
{
    app a;
    lt_modelfile *f = NULL;
    lt_status s = app_open(&a, o);
    if (s == LT_OK)
        s = lt_modelfile_open(a.ctx, o->arg, &f, &a.err); /* a vocabulary without weights will do */
    if (s == LT_OK)
        s = lt_tokenizer_create(a.ctx, f, &a.tok, &a.err);
    if (s == LT_OK)
        s = o->v[OPT_decode].set ? decode(&a) : encode(&a);
    int code = s == LT_OK ? 0 : app_fail(&a);
    lt_tokenizer_destroy(a.tok);
    a.tok = NULL;
    lt_modelfile_close(f);
    app_close(&a);
    return code;
}
