/* tokenizer.h - text to token ids and back, as the model's vendor does it.
 *
 *     lt_tokenizer *tk;  lt_tokens ids = {0};
 *     lt_tokenizer_create(ctx, file, &tk, &err);
 *     lt_tokenizer_encode(tk, text, len, LT_ENCODE_BOS | LT_ENCODE_SPECIAL, &ids, &err);
 *     lt_detok *d;
 *     lt_detok_create(tk, &d, &err);
 *     for (size_t i = 0; i < ids.n; i++) {
 *         size_t n;
 *         const char *s = lt_detok_push(d, ids.v[i], &n);   // whole UTF-8 characters only
 *         fwrite(s, 1, n, stdout);
 *     }
 *
 * Order      a detokeniser is fed in order; flush gives what an unfinished character left.
 * Lifetime   the tokenizer copies what it needs from the file; detokenisers borrow it.
 *            lt_detok_push's text lives until the next push.
 * Threads    a tokenizer is immutable; a detokeniser belongs to its caller.
 * Errors     any bytes can be encoded, invalid UTF-8 too. A vocabulary that contradicts
 *            itself is E_FORMAT, an unknown split rule E_UNSUPPORTED, naming it.
 */
#ifndef LT_TOKENIZER_H
#define LT_TOKENIZER_H

#include "lowtide/modelfile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_tokenizer lt_tokenizer;
typedef struct lt_detok     lt_detok;
typedef struct lt_tokens { lt_ctx *ctx; int32_t *v; size_t n, cap; } lt_tokens; /* zero it first */
LT_API void lt_tokens_clear(lt_tokens *t); /* frees */

typedef enum lt_encode_flags {
    LT_ENCODE_PLAIN   = 0,
    LT_ENCODE_BOS     = 1, /* bos/eos where the model's keys ask for them */
    LT_ENCODE_SPECIAL = 2  /* control tokens in the text are themselves, not their letters */
} lt_encode_flags;

typedef enum lt_token_kind {
    LT_TOKEN_NORMAL, LT_TOKEN_UNKNOWN, LT_TOKEN_CONTROL, LT_TOKEN_USER, LT_TOKEN_UNUSED, LT_TOKEN_BYTE
} lt_token_kind;

LT_API LT_NODISCARD lt_status
lt_tokenizer_create(lt_ctx *ctx, const lt_modelfile *f, lt_tokenizer **out, lt_err *err);
LT_API void lt_tokenizer_destroy(lt_tokenizer *tk);
LT_API uint32_t lt_tokenizer_vocab(const lt_tokenizer *tk);
LT_API const char *lt_tokenizer_kind(const lt_tokenizer *tk); /* "bpe smollm", "spm" */
/* Appends to *out. */
LT_API LT_NODISCARD lt_status
lt_tokenizer_encode(const lt_tokenizer *tk, const char *text, size_t bytes, unsigned flags,
                    lt_tokens *out, lt_err *err);
/* The token as the vocabulary spells it, and its kind. NULL when out of range. */
LT_API const char *lt_tokenizer_piece(const lt_tokenizer *tk, int32_t id, size_t *bytes, lt_token_kind *kind);
LT_API int32_t lt_tokenizer_find(const lt_tokenizer *tk, const char *piece); /* -1: none */
LT_API int32_t lt_tokenizer_bos(const lt_tokenizer *tk); /* -1: none; likewise eos */
LT_API int32_t lt_tokenizer_eos(const lt_tokenizer *tk);
LT_API bool lt_tokenizer_ends(const lt_tokenizer *tk, int32_t id); /* any end-of-generation token */

LT_API LT_NODISCARD lt_status lt_detok_create(const lt_tokenizer *tk, lt_detok **out, lt_err *err);
LT_API void lt_detok_destroy(lt_detok *d);
LT_API const char *lt_detok_push(lt_detok *d, int32_t id, size_t *bytes); /* control tokens give "" */
LT_API const char *lt_detok_flush(lt_detok *d, size_t *bytes);            /* leftover bytes become U+FFFD */
LT_API void lt_detok_show_special(lt_detok *d, bool on);
/* Exact bytes of all tokens, no streaming rule: decode(encode(x)) == x. Caller frees with lt_tokenizer_free_text. */
LT_API LT_NODISCARD lt_status
lt_tokenizer_decode(const lt_tokenizer *tk, const int32_t *ids, size_t n, bool special,
                    char **text, size_t *bytes, lt_err *err);
LT_API void lt_tokenizer_free_text(const lt_tokenizer *tk, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
