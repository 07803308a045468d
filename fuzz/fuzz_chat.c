/* A template's text and a conversation: detection never crashes, a rendered chat holds every
 * message's content, stripped at most. */
#include "text/chat.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_ctx *ctx;
    lt_err err;
    lt_chat_template t;
    if (size < 2)
        return 0;
    (void)lt__chat_fingerprint((const char *)data, size);
    if (lt__chat_known((const char *)data, size, &t) && (unsigned)t >= LT_CHAT_COUNT)
        abort();
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK)
        abort();
    uint8_t family = data[0], shape = data[1];
    char *copy = calloc(size, 1);
    memcpy(copy, data + 2, size - 2);
    lt_chat_message m[16];
    size_t n = 0, bytes;
    bool system = shape & 1;
    for (char *s = copy; s < copy + size - 1 && n < 16; s += strlen(s) + 1, n++)
        m[n] = (lt_chat_message){n == 0 && system ? "system" : (n + system) % 2 == 0 ? "user" : "assistant", s};
    char *text;
    lt_status s = lt_chat_render(ctx, (lt_chat_template)(family % (LT_CHAT_COUNT + 1)), m, n, shape & 2, &text, &bytes, &err);
    if (s == LT_OK) {
        if (strlen(text) != bytes || family % (LT_CHAT_COUNT + 1) == LT_CHAT_COUNT)
            abort();
        if (family % (LT_CHAT_COUNT + 1) == LT_CHAT_CHATML)
            for (size_t i = 0; i < n; i++)
                if (strstr(text, m[i].content) == NULL)
                    abort();
        lt_chat_free(ctx, text, bytes);
    } else if (s != LT_E_INVALID) {
        abort();
    }
    if (lt_ctx_host_bytes(ctx) != 0)
        abort();
    lt_ctx_destroy(ctx);
    free(copy);
    return 0;
}
