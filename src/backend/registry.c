#include "backend/backend.h"

#include "base/mem.h"

#include <string.h>

const lt_backend *const *lt__backend_list(void)
{
    static const lt_backend *const list[] = {&lt__backend_cpu, &lt__backend_sim, &lt__backend_cuda, NULL};
    return list;
}

lt_status lt_device_open(lt_ctx *ctx, const char *spec, lt_device **out, lt_err *err)
{
    if (!ctx || !spec || !out)
        return lt__fail(err, LT_E_INVALID, "lt_device_open: ctx, spec and out must not be NULL");
    size_t len = strcspn(spec, ":");
    const char *opts = spec[len] ? spec + len + 1 : "";
    char names[128] = "";
    for (const lt_backend *const *b = lt__backend_list(); *b; b++) {
        if (strlen((*b)->name) == len && !strncmp((*b)->name, spec, len))
            return (*b)->open(ctx, opts, out, err);
        strncat(names, names[0] ? ", " : "", sizeof names - strlen(names) - 1);
        strncat(names, (*b)->name, sizeof names - strlen(names) - 1);
    }
    return lt__fail(err, LT_E_INVALID, "no device kind '%.*s'; there are %s", (int)len, spec, names);
}

bool lt_device_identify(lt_ctx *ctx, const char *spec, char *id, size_t bytes)
{
    if (!ctx || !spec || !id || !bytes)
        return false;
    size_t len = strcspn(spec, ":");
    for (const lt_backend *const *b = lt__backend_list(); *b; b++)
        if (strlen((*b)->name) == len && !strncmp((*b)->name, spec, len))
            return (*b)->identify && (*b)->identify(ctx, spec[len] ? spec + len + 1 : "", id, bytes);
    return false;
}

bool lt_device_probe(lt_ctx *ctx, const char *kind, char *out, size_t bytes, lt_finding_fn found, void *user)
{
    for (const lt_backend *const *b = lt__backend_list(); ctx && kind && out && bytes && *b; b++)
        if (!strcmp((*b)->name, kind) && (*b)->probe) {
            (*b)->probe(ctx, out, bytes, found, user);
            return true;
        }
    return false;
}
