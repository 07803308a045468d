#include "base/mem.h"
#include "models/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool name_value(const lt_hparams *hp, const char *name, size_t n, uint64_t *out)
{
    const struct { const char *name; uint32_t value; } names[] = {
        {"layers", hp->layers},     {"embd", hp->embd},         {"ff", hp->ff},
        {"heads", hp->heads},       {"kv_heads", hp->kv_heads}, {"head_dim", hp->head_dim},
        {"vocab", hp->vocab},       {"rotated", hp->rope[0].rotated},
        {"experts", hp->experts},   {"experts_used", hp->experts_used}, {"expert_ff", hp->expert_ff},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0) {
            *out = names[i].value;
            return true;
        }
    return false;
}

static bool eval_atom(const lt_hparams *hp, const char **p, uint64_t *out)
{
    size_t n = strspn(*p, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (n == 0)
        return false;
    const char *s = *p;
    *p += n;
    if (s[0] < '0' || s[0] > '9')
        return name_value(hp, s, n, out);
    *out = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9' || !lt__mul_u64(*out, 10, out) || !lt__add_u64(*out, (uint64_t)(s[i] - '0'), out))
            return false;
    return true;
}

bool lt__rows_eval(const lt_hparams *hp, const char *expr, uint64_t *out)
{
    const char *p = expr;
    *out = 0;
    for (;;) {
        uint64_t term, factor;
        if (!eval_atom(hp, &p, &term))
            return false;
        while (*p == '*' || *p == '/') {
            char op = *p++;
            if (!eval_atom(hp, &p, &factor))
                return false;
            if (op == '*') {
                if (!lt__mul_u64(term, factor, &term))
                    return false;
            } else {
                if (factor == 0 || term % factor != 0)
                    return false;
                term /= factor;
            }
        }
        if (!lt__add_u64(*out, term, out))
            return false;
        if (*p == 0)
            return true;
        if (*p++ != '+')
            return false;
    }
}

const char *lt__model_path(const struct lt_model *m) { return lt_modelfile_part_path(m->file, 0); }

static const lt_key *find_key(const struct lt_model *m, const char *key, char name[128])
{
    snprintf(name, 128, "%s.%s", m->arch->name, key);
    return lt_modelfile_key(m->file, name);
}

static bool element(const lt_key *k, lt_key_type type, uint64_t i, double *out)
{
    switch (type) {
    case LT_KEY_INT: *out = (double)k->v.i[i]; return true;
    case LT_KEY_UINT: *out = (double)k->v.u[i]; return true;
    case LT_KEY_FLOAT: *out = k->v.f[i]; return true;
    default: return false;
    }
}

static const char *type_text(lt_key_type t)
{
    switch (t) {
    case LT_KEY_BOOL: return "a bool";
    case LT_KEY_INT:
    case LT_KEY_UINT: return "an integer";
    case LT_KEY_FLOAT: return "a float";
    case LT_KEY_STRING: return "a string";
    case LT_KEY_ARRAY: return "an array";
    }
    return "of an unknown type";
}

/* One number, from a scalar or from an array of equal ones. Integers up to 2^53 are exact in a
 * double; beyond that they are out of every range here. */
static lt_status read_number(const struct lt_model *m, const char *name, const lt_key *k, bool whole, double min,
                             double max, double *out, lt_err *err)
{
    const char *want = whole ? "an integer" : "a number";
    lt_key_type type = k->type == LT_KEY_ARRAY ? k->elem_type : k->type;
    double v = 0;
    if (k->type == LT_KEY_ARRAY && k->n == 0)
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is an empty array; expected %s from %.12g to %.12g",
                        lt__model_path(m), name, want, min, max);
    if ((whole && type == LT_KEY_FLOAT) || !element(k, type, 0, &v))
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is %s; expected %s from %.12g to %.12g", lt__model_path(m),
                        name, type_text(type), want, min, max);
    for (uint64_t i = 1; i < k->n; i++) {
        double other;
        if (element(k, type, i, &other) && other != v)
            return lt__fail(err, LT_E_UNSUPPORTED,
                            "%s: key '%s' differs between layers (%.12g and %.12g), which is not supported",
                            lt__model_path(m), name, v, other);
    }
    if (!(v >= min && v <= max))
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is %.12g; expected %s from %.12g to %.12g", lt__model_path(m),
                        name, v, want, min, max);
    *out = v;
    return LT_OK;
}

lt_status lt__rows_hparams(struct lt_model *m, lt_err *err)
{
    for (size_t i = 0; i < m->arch->n_hparams; i++) {
        const lt_hparam_row *r = &m->arch->hparams[i];
        char name[128];
        const lt_key *k = find_key(m, r->key, name);
        double v = r->dflt;
        bool whole = r->type == 'u';
        if (!k && r->required)
            return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is missing; expected %s from %.12g to %.12g",
                            lt__model_path(m), name, whole ? "an integer" : "a number", r->min, r->max);
        if (k) {
            lt_status s = read_number(m, name, k, whole, r->min, r->max, &v, err);
            if (s != LT_OK)
                return s;
        }
        char *at = (char *)&m->hp + r->offset;
        if (r->type == 'u') {
            uint32_t u = (uint32_t)v;
            memcpy(at, &u, sizeof u);
        } else if (r->type == 'f') {
            float f = (float)v;
            memcpy(at, &f, sizeof f);
        } else {
            memcpy(at, &v, sizeof v);
        }
    }
    return LT_OK;
}

lt_status lt__rows_u32(const struct lt_model *m, const char *key, uint32_t min, uint32_t max, uint32_t *out,
                       lt_err *err)
{
    char name[128];
    const lt_key *k = find_key(m, key, name);
    double v = *out;
    if (!k)
        return LT_OK;
    lt_status s = read_number(m, name, k, true, min, max, &v, err);
    if (s == LT_OK)
        *out = (uint32_t)v;
    return s;
}

lt_status lt__rows_bool(const struct lt_model *m, const char *key, bool *out, lt_err *err)
{
    char name[128];
    const lt_key *k = find_key(m, key, name);
    double v = 0;
    if (!k)
        return LT_OK;
    if (k->type == LT_KEY_BOOL) {
        *out = k->v.b[0];
        return LT_OK;
    }
    if ((k->type != LT_KEY_INT && k->type != LT_KEY_UINT) || !element(k, k->type, 0, &v) || (v != 0 && v != 1))
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is %s; expected a bool", lt__model_path(m), name, type_text(k->type));
    *out = v != 0;
    return LT_OK;
}

lt_status lt__rows_str(const struct lt_model *m, const char *name, const char **out, lt_err *err)
{
    const lt_key *k = lt_modelfile_key(m->file, name);
    if (k && k->type != LT_KEY_STRING)
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is %s; expected a string", lt__model_path(m), name, type_text(k->type));
    *out = k ? k->v.s[0] : NULL;
    return LT_OK;
}

lt_status lt__rows_f64(const struct lt_model *m, const char *key, double min, double max, double *out, lt_err *err)
{
    char name[128];
    const lt_key *k = find_key(m, key, name);
    return k ? read_number(m, name, k, false, min, max, out, err) : LT_OK;
}
