/* text.c - sizes in words, spec strings, the clock. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

uint64_t lt__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool lt__parse_bytes(const char *s, uint64_t *out)
{
    if (!s || !isdigit((unsigned char)*s))
        return false;
    char *end;
    double value = strtod(s, &end);
    int shift = 0;
    switch (toupper((unsigned char)*end)) {
    case 'K': shift = 10; break;
    case 'M': shift = 20; break;
    case 'G': shift = 30; break;
    case 'T': shift = 40; break;
    default: break;
    }
    if (shift) {
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B' || *end == 'b')
            end++;
    } else if (*end == 'B') {
        end++;
    }
    if (*end)
        return false;
    value = ldexp(value, shift);
    if (!(value >= 0 && value < 9.2e18))
        return false;
    *out = (uint64_t)value;
    return true;
}

const char *lt__format_bytes(uint64_t bytes, char *buf, size_t buf_bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(buf, buf_bytes, u == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

lt_status lt__spec_parse(const char *text, lt__spec_fn *fn, void *user, lt_err *err)
{
    char key[32], value[256];
    while (*text) {
        size_t len = strcspn(text, ",");
        const char *eq = memchr(text, '=', len);
        if (!eq || eq == text || (size_t)(eq - text) >= sizeof key || len - (size_t)(eq - text) - 1 >= sizeof value)
            return lt__fail(err, LT_E_INVALID, "'%.*s': expected key=value", (int)len, text);
        memcpy(key, text, (size_t)(eq - text));
        key[eq - text] = 0;
        size_t n = len - (size_t)(eq - text) - 1;
        memcpy(value, eq + 1, n);
        value[n] = 0;
        lt_status s = fn(user, key, value, err);
        if (s != LT_OK)
            return s;
        text += len;
        if (*text == ',' && !*++text)
            return lt__fail(err, LT_E_INVALID, "'%s=%s,': nothing behind the comma", key, value);
    }
    return LT_OK;
}
