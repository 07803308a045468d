#include "format/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/reader.h"

void lt__json_init(lt__json *j, lt_ctx *ctx, const char *path, const char *text, size_t bytes)
{
    *j = (lt__json){.ctx = ctx, .path = path, .start = text, .p = text, .end = text + bytes};
}

bool lt__json_fail(lt__json *j, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    if (j->err.status != LT_OK) return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    lt__fail(&j->err, LT_E_FORMAT, "%s: %s, at byte %zu of the JSON", lt__path_tail(j->path), text, (size_t)(j->p - j->start));
    return false;
}

static bool ok(const lt__json *j) { return j->err.status == LT_OK; }

static bool syntax(lt__json *j, const char *wanted)
{
    if (j->p == j->end) return lt__json_fail(j, "the text ends where %s was expected", wanted);
    unsigned char c = (unsigned char)*j->p;
    if (c > 0x20 && c < 0x7f) return lt__json_fail(j, "%s was expected instead of '%c'", wanted, c);
    return lt__json_fail(j, "%s was expected instead of byte 0x%02x", wanted, c);
}

static void space(lt__json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r')) j->p++;
}

static bool punct(lt__json *j, char c, const char *wanted)
{
    space(j);
    if (j->p == j->end || *j->p != c) return syntax(j, wanted);
    j->p++;
    return true;
}

lt_status lt__json_done(lt__json *j, lt_err *err)
{
    if (ok(j)) {
        space(j);
        if (j->depth) lt__json_fail(j, "the document was not read to its end");
        else if (j->p != j->end) lt__json_fail(j, "there is text behind the document");
    }
    lt__free(j->ctx, j->scratch, j->scratch_cap);
    j->scratch = NULL;
    j->scratch_cap = 0;
    if (!ok(j) && err) *err = j->err;
    return j->err.status;
}

lt__json_kind lt__json_peek(lt__json *j)
{
    if (!ok(j)) return LT__JSON_NONE;
    space(j);
    switch (j->p < j->end ? *j->p : 0) {
    case '{': return LT__JSON_OBJECT;
    case '[': return LT__JSON_ARRAY;
    case '"': return LT__JSON_STRING;
    case 't': case 'f': return LT__JSON_BOOL;
    case 'n': return LT__JSON_NULL;
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        return LT__JSON_NUMBER;
    default: return LT__JSON_NONE;
    }
}

static bool enter(lt__json *j, char c, const char *wanted)
{
    if (!ok(j) || !punct(j, c, wanted)) return false;
    if (j->depth == LT__JSON_DEPTH) return lt__json_fail(j, "values are nested deeper than %d levels", LT__JSON_DEPTH);
    j->used &= ~(1ull << j->depth++);
    return true;
}

bool lt__json_object(lt__json *j) { return enter(j, '{', "an object"); }
bool lt__json_array(lt__json *j) { return enter(j, '[', "an array"); }

/* True when another element follows. */
static bool another(lt__json *j, char close, const char *wanted)
{
    uint64_t bit = 1ull << (j->depth - 1);
    if (!ok(j)) return false;
    space(j);
    if (j->p < j->end && *j->p == close) {
        j->p++;
        j->depth--;
        return false;
    }
    if ((j->used & bit) && !punct(j, ',', wanted)) return false;
    j->used |= bit;
    return true;
}

bool lt__json_item(lt__json *j) { return another(j, ']', "',' or ']'"); }
bool lt__json_key(lt__json *j) { return another(j, '}', "',' or '}'") && lt__json_string(j) && punct(j, ':', "':'"); }

/* ---- strings ---- */

static bool hex4(lt__json *j, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : 0;
        if (c >= '0' && c <= '9') *out = *out << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') *out = *out << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else return syntax(j, "a hexadecimal digit");
    }
    return true;
}

static bool escape(lt__json *j, char *out, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p : 0;
    const char *at = c ? strchr(from, c) : NULL;
    uint32_t cp, low;

    if (at) {
        out[(*n)++] = to[at - from];
        j->p++;
        return true;
    }
    if (c != 'u') return syntax(j, "an escape");
    j->p++;
    if (!hex4(j, &cp)) return false;
    if (cp >= 0xd800 && cp < 0xdc00) {
        if (j->end - j->p < 2 || j->p[0] != '\\' || j->p[1] != 'u') return syntax(j, "the second half of a surrogate pair");
        j->p += 2;
        if (!hex4(j, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff) return lt__json_fail(j, "a surrogate pair has no second half");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp >= 0xdc00 && cp < 0xe000)
        return lt__json_fail(j, "the second half of a surrogate pair stands alone");
    *n += (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out + *n);
    return true;
}

/* Moves over plain characters; stops at a quote, a backslash or the end. */
static bool plain(lt__json *j)
{
    while (j->p < j->end) {
        unsigned char c = (unsigned char)*j->p;
        if (c == '"' || c == '\\') return true;
        if (c < 0x20) return lt__json_fail(j, "a string holds the control character 0x%02x", c);
        if (c < 0x80) {
            j->p++;
            continue;
        }
        utf8proc_int32_t cp;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)j->p, j->end - j->p, &cp);
        if (k <= 0) return lt__json_fail(j, "a string is not valid UTF-8");
        j->p += k;
    }
    return lt__json_fail(j, "the text ends within a string");
}

bool lt__json_string(lt__json *j)
{
    const char *from;
    size_t n = 0;

    if (!ok(j) || !punct(j, '"', "a string")) return false;
    from = j->p;
    if (!plain(j)) return false;
    if (*j->p == '"') { /* the usual one needs no copy */
        j->str = from;
        j->str_n = (size_t)(j->p++ - from);
        return true;
    }
    j->p = from;
    for (;;) {
        from = j->p;
        if (!plain(j)) return false;
        size_t m = (size_t)(j->p - from);
        if (lt__grow(j->ctx, (void **)&j->scratch, &j->scratch_cap, n + m + 4, 1, &j->err) != LT_OK) return false;
        memcpy(j->scratch + n, from, m);
        n += m;
        if (*j->p++ == '"') break;
        if (!escape(j, j->scratch, &n)) return false;
    }
    j->str = j->scratch;
    j->str_n = n;
    return true;
}

bool lt__json_is(const lt__json *j, const char *name) { return strlen(name) == j->str_n && memcmp(j->str, name, j->str_n) == 0; }

/* ---- other values ---- */

static bool digits(lt__json *j)
{
    if (j->p == j->end || *j->p < '0' || *j->p > '9') return syntax(j, "a digit");
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
    return true;
}

static bool skip_number(lt__json *j)
{
    if (j->p < j->end && *j->p == '-') j->p++;
    if (j->p < j->end && *j->p == '0') j->p++;
    else if (!digits(j)) return false;
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        if (!digits(j)) return false;
    }
    if (j->p < j->end && (*j->p | 32) == 'e') {
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-')) j->p++;
        if (!digits(j)) return false;
    }
    return true;
}

bool lt__json_u64(lt__json *j, uint64_t *out)
{
    if (!ok(j)) return false;
    space(j);
    const char *from = j->p;
    uint64_t v = 0;
    if (!digits(j)) return false;
    if (j->p - from > 1 && *from == '0') return lt__json_fail(j, "a number begins with 0");
    if (j->p < j->end && (*j->p == '.' || (*j->p | 32) == 'e')) return syntax(j, "a whole number");
    for (const char *c = from; c < j->p; c++)
        if (!lt__mul_u64(v, 10, &v) || !lt__add_u64(v, (uint64_t)(*c - '0'), &v))
            return lt__json_fail(j, "the number %.*s is above 2^64", (int)lt__min_u64(24, (uint64_t)(j->p - from)), from);
    *out = v;
    return true;
}

static bool word(lt__json *j, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, w, n) != 0) return syntax(j, w);
    j->p += n;
    return true;
}

bool lt__json_bool(lt__json *j, bool *out)
{
    if (lt__json_peek(j) != LT__JSON_BOOL) return ok(j) && syntax(j, "true or false");
    *out = *j->p == 't';
    return word(j, *out ? "true" : "false");
}

/* Not recursive: a level's closing bracket is enough to know what the level was. */
bool lt__json_skip(lt__json *j)
{
    uint32_t base = j->depth;
    uint64_t objects = 0; /* bit d: level d is an object */
    do {
        switch (lt__json_peek(j)) {
        case LT__JSON_OBJECT:
            if (lt__json_object(j)) objects |= 1ull << (j->depth - 1);
            break;
        case LT__JSON_ARRAY:
            if (lt__json_array(j)) objects &= ~(1ull << (j->depth - 1));
            break;
        case LT__JSON_STRING: lt__json_string(j); break;
        case LT__JSON_NUMBER: skip_number(j); break;
        case LT__JSON_BOOL: word(j, *j->p == 't' ? "true" : "false"); break;
        case LT__JSON_NULL: word(j, "null"); break;
        case LT__JSON_NONE: if (ok(j)) syntax(j, "a value"); break;
        }
        while (ok(j) && j->depth > base && !(objects >> (j->depth - 1) & 1 ? lt__json_key(j) : lt__json_item(j))) continue;
    } while (ok(j) && j->depth > base);
    return ok(j);
}
