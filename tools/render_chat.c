/* render_chat FAMILY [open] < framed: the prompt a conversation becomes. A frame is a length in
 * bytes as a decimal line, then the bytes; frames are role, content, role, content.
 * render_chat fingerprint < template: the number a template is known by. */
#include "text/chat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *frame(void)
{
    char line[32];
    if (fgets(line, sizeof line, stdin) == NULL)
        return NULL;
    size_t n = strtoull(line, NULL, 10);
    char *s = calloc(n + 1, 1);
    if (s != NULL && fread(s, 1, n, stdin) != n)
        return NULL;
    return s;
}

static int print_fingerprint(void)
{
    static char text[1 << 20];
    lt_chat_template t;
    size_t n = fread(text, 1, sizeof text, stdin);
    printf("0x%016" PRIx64 " %s\n", lt__chat_fingerprint(text, n), lt__chat_known(text, n, &t) ? lt_chat_name(t) : "unknown");
    return 0;
}

int main(int argc, char **argv)
{
    lt_err err;
    lt_ctx *ctx;
    lt_chat_template t;
    lt_chat_message m[64];
    size_t n = 0, bytes;
    char *text;
    if (argc > 1 && strcmp(argv[1], "fingerprint") == 0)
        return print_fingerprint();
    if (argc < 2 || !lt_chat_by_name(argv[1], &t))
        return fprintf(stderr, "usage: render_chat FAMILY [open] < frames\n"), 2;
    while (n < 64 && (m[n].role = frame()) != NULL && (m[n].content = frame()) != NULL)
        n++;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK ||
        lt_chat_render(ctx, t, m, n, argc > 2, &text, &bytes, &err) != LT_OK)
        return fprintf(stderr, "%s\n", err.text), 1;
    fwrite(text, 1, bytes, stdout);
    lt_chat_free(ctx, text, bytes);
    lt_ctx_destroy(ctx);
    for (size_t i = 0; i < n; i++) {
        free((char *)m[i].role);
        free((char *)m[i].content);
    }
    return 0;
}
