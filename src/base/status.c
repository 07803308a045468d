/* status.c - status names and texts, error filling. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

const char *lt_version(void) { return LT_VERSION; }

const char *lt_status_name(lt_status s)
{
    switch (s) {
#define LT_X(name, value, text) case LT_##name: return "LT_" #name;
        LT_STATUS_LIST(LT_X)
#undef LT_X
    default: return "LT_E_UNKNOWN";
    }
}

const char *lt_status_text(lt_status s)
{
    switch (s) {
#define LT_X(name, value, text) case LT_##name: return text;
        LT_STATUS_LIST(LT_X)
#undef LT_X
    default: return "unknown status";
    }
}

static void fill_err(lt_err *err, lt_status s, int32_t native, const char *fmt, va_list ap)
{
    if (!err)
        return;
    err->status = s;
    err->native = native;
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    if (n >= (int)sizeof err->text)
        memcpy(err->text + sizeof err->text - 4, "...", 4);
}

lt_status lt__fail(lt_err *err, lt_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill_err(err, s, 0, fmt, ap);
    va_end(ap);
    return s;
}

lt_status lt__fail_native(lt_err *err, lt_status s, int32_t native, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill_err(err, s, native, fmt, ap);
    va_end(ap);
    return s;
}

lt_status lt__fail_errno(lt_err *err, int e, const char *fmt, ...)
{
    lt_status s = e == ENOENT ? LT_E_NOT_FOUND : e == ENOMEM ? LT_E_HOST_OOM : LT_E_IO;
    va_list ap;
    va_start(ap, fmt);
    fill_err(err, s, e, fmt, ap);
    va_end(ap);
    if (err) {
        char why[128];
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror_r(e, why, sizeof why));
    }
    return s;
}

lt_status lt__fail_oom(lt_err *err, size_t bytes, const char *what)
{
    return lt__fail(err, LT_E_HOST_OOM, "out of host memory: %zu bytes for %s", bytes, what);
}
