/* encode_texts MODEL [special] < framed > lines: token ids of each text of a framed stream, for
 * comparing with another tokenizer. A frame is the text's length in bytes as a decimal line, then
 * the text. A line gives the ids, then `|` and the decoded text in hexadecimal. `!time FILE`
 * instead of `special` prints how long creating and encoding FILE take. */
#include "base/mem.h"
#include "lowtide/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const lt_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    return 1;
}

static int encode_stream(const lt_tokenizer *tk, unsigned flags)
{
    lt_err err;
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t n = strtoull(line, NULL, 10), got, back_bytes;
        char *text = malloc(n + 1), *back;
        if (text == NULL || (got = fread(text, 1, n, stdin)) != n)
            return fprintf(stderr, "a frame says %zu bytes, the stream ends before\n", n), 1;
        lt_tokens ids = {0};
        if (lt_tokenizer_encode(tk, text, n, flags, &ids, &err) != LT_OK ||
            lt_tokenizer_decode(tk, ids.v, ids.n, flags & LT_ENCODE_SPECIAL, &back, &back_bytes, &err) != LT_OK)
            return fail(&err);
        for (size_t i = 0; i < ids.n; i++)
            printf("%d ", ids.v[i]);
        putchar('|');
        for (size_t i = 0; i < back_bytes; i++)
            printf("%02x", (unsigned char)back[i]);
        putchar('\n');
        lt_tokenizer_free_text(tk, back, back_bytes);
        lt_tokens_clear(&ids);
        free(text);
    }
    return 0;
}

static int time_file(lt_ctx *ctx, const lt_modelfile *f, const char *path)
{
    lt_err err;
    FILE *in = fopen(path, "rb");
    if (in == NULL)
        return perror(path), 1;
    static char text[1 << 24];
    size_t n = fread(text, 1, sizeof text, in), tokens = 0;
    fclose(in);
    uint64_t make = UINT64_MAX, best = UINT64_MAX;
    for (int i = 0; i < 7; i++) {
        lt_tokenizer *tk;
        lt_tokens ids = {0};
        uint64_t t0 = lt__now_ns();
        if (lt_tokenizer_create(ctx, f, &tk, &err) != LT_OK)
            return fail(&err);
        uint64_t t1 = lt__now_ns();
        if (lt_tokenizer_encode(tk, text, n, LT_ENCODE_SPECIAL, &ids, &err) != LT_OK)
            return fail(&err);
        uint64_t t2 = lt__now_ns();
        make = lt__min_u64(make, t1 - t0);
        best = lt__min_u64(best, t2 - t1);
        tokens = ids.n;
        lt_tokens_clear(&ids);
        lt_tokenizer_destroy(tk);
    }
    printf("create %.1f ms, encode %zu bytes to %zu tokens in %.1f ms\n", (double)make / 1e6, n, tokens, (double)best / 1e6);
    return 0;
}

int main(int argc, char **argv)
{
    lt_err err;
    lt_ctx *ctx;
    lt_modelfile *f = NULL;
    lt_tokenizer *tk = NULL;
    if (argc < 2)
        return fprintf(stderr, "usage: encode_texts MODEL [special | !time FILE] < framed texts\n"), 2;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK || lt_modelfile_open(ctx, argv[1], &f, &err) != LT_OK)
        return fail(&err);
    int rc;
    if (argc > 3 && strcmp(argv[2], "!time") == 0)
        rc = time_file(ctx, f, argv[3]);
    else if (lt_tokenizer_create(ctx, f, &tk, &err) != LT_OK)
        rc = fail(&err);
    else
        rc = encode_stream(tk, argc > 2 && strcmp(argv[2], "special") == 0 ? LT_ENCODE_SPECIAL : LT_ENCODE_PLAIN);
    lt_tokenizer_destroy(tk);
    lt_modelfile_close(f);
    lt_ctx_destroy(ctx);
    return rc;
}
