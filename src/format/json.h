/* json.h - JSON read once, front to back, with nothing built: for documents whose size a stranger chose.
 *
 *     lt__json j;
 *     lt__json_init(&j, ctx, path, text, bytes);
 *     if (lt__json_object(&j))
 *         while (lt__json_key(&j)) {
 *             if (lt__json_is(&j, "vocab")) read_vocab(&j);
 *             else lt__json_skip(&j);
 *         }
 *     lt_status s = lt__json_done(&j, err);   // also of everything that failed before
 *
 * Strict RFC 8259: UTF-8, no trailing commas, no lone surrogates; at most 64 levels deep.
 * After the first failure every call returns false. A value that was announced by a key or an item
 * must be read or skipped. Why not the JSON library: its tree takes 20 to 40 times the text (250 MB for
 * a tokenizer.json of 33 MB) from an allocator of its own that is one for the whole process. */
#ifndef LT_FORMAT_JSON_H
#define LT_FORMAT_JSON_H

#include "lowtide/base.h"

enum { LT__JSON_DEPTH = 64 };

typedef struct lt__json {
    lt_ctx     *ctx;
    const char *path, *start, *p, *end;
    const char *str;      /* of the last key or string: decoded, not NUL-terminated */
    size_t      str_n;
    char       *scratch;
    size_t      scratch_cap;
    uint64_t    used;     /* bit d: level d has had an element */
    uint32_t    depth;
    lt_err      err;      /* the first failure */
} lt__json;

typedef enum lt__json_kind {
    LT__JSON_NONE, LT__JSON_NULL, LT__JSON_BOOL, LT__JSON_NUMBER, LT__JSON_STRING, LT__JSON_ARRAY, LT__JSON_OBJECT
} lt__json_kind;

void lt__json_init(lt__json *j, lt_ctx *ctx, const char *path, const char *text, size_t bytes);
/* The first failure, or text behind the document; frees the scratch. */
LT_NODISCARD lt_status lt__json_done(lt__json *j, lt_err *err);
/* Records a failure of the caller's own, unless one is recorded. Always false. */
bool lt__json_fail(lt__json *j, const char *fmt, ...) LT_PRINTF(2, 3);

lt__json_kind lt__json_peek(lt__json *j);
bool lt__json_object(lt__json *j); /* enters */
bool lt__json_key(lt__json *j);    /* the next key, in str; false at the end, which it leaves */
bool lt__json_array(lt__json *j);
bool lt__json_item(lt__json *j);
bool lt__json_string(lt__json *j);
bool lt__json_u64(lt__json *j, uint64_t *out); /* a whole number without sign, point or exponent */
bool lt__json_bool(lt__json *j, bool *out);
bool lt__json_skip(lt__json *j);   /* checks what it skips */
bool lt__json_is(const lt__json *j, const char *name);

#endif
