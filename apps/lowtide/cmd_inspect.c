/* cmd_inspect.c - shows what a model file holds; also one whose architecture is not supported. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

#define SHOWN 6 /* elements of an array in the listing */

static json_t *scalar_json(const lt_key *k, uint64_t i)
{
    switch (k->type == LT_KEY_ARRAY ? k->elem_type : k->type) {
    case LT_KEY_BOOL: return json_boolean(k->v.b[i]);
    case LT_KEY_INT: return json_integer(k->v.i[i]);
    case LT_KEY_UINT: return json_integer((json_int_t)k->v.u[i]);
    case LT_KEY_FLOAT: return json_real(k->v.f[i]);
    case LT_KEY_STRING: {
        json_t *s = json_stringn(k->v.s[i], k->s_len[i]);
        return s ? s : json_string("(not UTF-8)");
    }
    case LT_KEY_ARRAY: break;
    }
    return json_null();
}

static json_t *key_json(const lt_key *k, uint64_t most)
{
    if (k->type != LT_KEY_ARRAY)
        return scalar_json(k, 0);
    json_t *j = json_array();
    for (uint64_t i = 0; i < k->n && i < most; i++)
        json_array_append_new(j, scalar_json(k, i));
    return j;
}

static json_t *tensor_json(const lt_modelfile *f, const lt_tensor_info *t)
{
    json_t *dims = json_array();
    for (uint32_t d = 0; d < t->ndim; d++)
        json_array_append_new(dims, json_integer((json_int_t)t->dim[d]));
    return json_pack("{s:s, s:s, s:b, s:o, s:I, s:s, s:I}", "name", t->name, "type", t->type_name, "supported",
                     t->dtype != LT_DTYPE_COUNT, "shape", dims, "bytes", (json_int_t)t->bytes, "file",
                     lt_modelfile_part_path(f, t->file), "offset", (json_int_t)t->offset);
}

static void print_json(const lt_modelfile *f)
{
    json_t *j = json_object(), *keys = json_object(), *tensors = json_array();
    json_object_set_new(j, "format", json_string(lt_modelfile_format(f)));
    json_object_set_new(j, "parts", json_integer(lt_modelfile_parts(f)));
    for (uint64_t i = 0; i < lt_modelfile_key_count(f); i++) {
        const lt_key *k = lt_modelfile_key_at(f, i);
        json_object_set_new(keys, k->name, key_json(k, UINT64_MAX));
    }
    for (uint64_t i = 0; i < lt_modelfile_tensor_count(f); i++)
        json_array_append_new(tensors, tensor_json(f, lt_modelfile_tensor_at(f, i)));
    json_object_set_new(j, "keys", keys);
    json_object_set_new(j, "tensors", tensors);
    app_print_json(j);
}

static void print_keys(const lt_modelfile *f)
{
    for (uint64_t i = 0; i < lt_modelfile_key_count(f); i++) {
        const lt_key *k = lt_modelfile_key_at(f, i);
        json_t *v = key_json(k, SHOWN);
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        size_t n = text ? strlen(text) : 0;
        printf("%-44s %.*s%s", k->name, n > 300 ? 300 : (int)n, text ? text : "?", n > 300 ? "..." : "");
        if (k->type == LT_KEY_ARRAY && k->n > SHOWN)
            printf(" and %" PRIu64 " more", k->n - SHOWN);
        putchar('\n');
        free(text);
        json_decref(v);
    }
}

static void print_tensors(const lt_modelfile *f)
{
    for (uint64_t i = 0; i < lt_modelfile_tensor_count(f); i++) {
        const lt_tensor_info *t = lt_modelfile_tensor_at(f, i);
        char dims[96] = "";
        for (uint32_t d = 0; d < t->ndim; d++)
            snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%" PRIu64, d ? " x " : "", t->dim[d]);
        printf("%-40s %-8s %-20s %12" PRIu64 "%s\n", t->name, t->type_name, dims, t->bytes,
               t->dtype == LT_DTYPE_COUNT ? "  (type not supported)" : "");
    }
}

/* Of a key of the architecture; 0 where there is none. */
static uint64_t count_of(const lt_modelfile *f, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", lt_modelfile_str(f, "general.architecture", ""), key);
    const lt_key *k = lt_modelfile_key(f, name);
    return k && k->type == LT_KEY_UINT ? k->v.u[0] : k && k->type == LT_KEY_INT && k->v.i[0] > 0 ? (uint64_t)k->v.i[0] : 0;
}

static void print_summary(const lt_modelfile *f)
{
    char b[24];
    uint64_t sum = 0, types = 0;
    struct { const char *name; uint64_t bytes, count; } by[64];
    for (uint64_t i = 0; i < lt_modelfile_tensor_count(f); i++) {
        const lt_tensor_info *t = lt_modelfile_tensor_at(f, i);
        uint64_t k = 0;
        while (k < types && strcmp(by[k].name, t->type_name) != 0)
            k++;
        if (k == types && types < sizeof by / sizeof *by) {
            by[types].name = t->type_name;
            by[types].bytes = by[types].count = 0;
            types++;
        }
        if (k < types) {
            by[k].bytes += t->bytes;
            by[k].count++;
        }
        sum += t->bytes;
    }
    printf("%s: %s, %u part%s, %" PRIu64 " keys, %" PRIu64 " tensors, %s\n", lt_modelfile_part_path(f, 0), lt_modelfile_format(f),
           lt_modelfile_parts(f), lt_modelfile_parts(f) == 1 ? "" : "s", lt_modelfile_key_count(f), lt_modelfile_tensor_count(f),
           app_bytes(sum, b));
    printf("architecture %s, name %s", lt_modelfile_str(f, "general.architecture", "(none)"), lt_modelfile_str(f, "general.name", "(none)"));
    uint64_t experts = count_of(f, "expert_count");
    if (experts)
        printf(", %" PRIu64 " experts, %" PRIu64 " of them a token's", experts, count_of(f, "expert_used_count"));
    putchar('\n');
    for (uint64_t k = 0; k < types; k++)
        printf("  %-8s %6" PRIu64 " tensors %12s\n", by[k].name, by[k].count, app_bytes(by[k].bytes, b));
}

int cmd_inspect(const opts *o)
{
    app a;
    lt_modelfile *f = NULL;
    lt_status s = app_open(&a, o);
    if (s == LT_OK)
        s = lt_modelfile_open(a.ctx, o->arg, &f, &a.err);
    if (s == LT_OK && o->v[OPT_json].set) {
        print_json(f);
    } else if (s == LT_OK) {
        print_summary(f);
        if (o->v[OPT_keys].set)
            print_keys(f);
        if (o->v[OPT_tensors].set)
            print_tensors(f);
    }
    int code = s == LT_OK ? 0 : app_fail(&a);
    lt_modelfile_close(f);
    app_close(&a);
    return code;
}
