/* chat_read.c - what of an answer is for the user. */
#include "lowtide/chat.h"

#include <string.h>

enum { HEADER, CHANNEL, THOUGHTS, FINAL, BETWEEN };

static bool is_piece(const lt_tokenizer *tk, int32_t id, const char *piece)
{
    size_t n;
    lt_token_kind kind;
    const char *s = lt_tokenizer_piece(tk, id, &n, &kind);
    return s != NULL && (kind == LT_TOKEN_CONTROL || kind == LT_TOKEN_USER) && n == strlen(piece) && memcmp(s, piece, n) == 0;
}

static void name_channel(lt_chat_reader *r, const lt_tokenizer *tk, int32_t id)
{
    size_t n;
    lt_token_kind kind;
    const char *s = lt_tokenizer_piece(tk, id, &n, &kind);
    for (size_t i = 0; s != NULL && i < n && r->n + 1 < sizeof r->channel; i++)
        r->channel[r->n++] = s[i];
}

/* A message that names no channel is an answer. Behind the name may stand whom a message is for, and its form: " to=functions.f",
 * " json". */
static bool is_final(const lt_chat_reader *r)
{
    bool more = r->n > 5 && r->channel[5] >= 'a' && r->channel[5] <= 'z';
    return r->state == HEADER || (r->n >= 5 && memcmp(r->channel, "final", 5) == 0 && !more);
}

lt_chat_part lt_chat_read(lt_chat_reader *r, lt_chat_template t, const lt_tokenizer *tk, int32_t id)
{
    if (t != LT_CHAT_HARMONY || lt_tokenizer_find(tk, "<|message|>") < 0) /* a model of another family has no channels */
        return LT_CHAT_SHOWN;
    if (is_piece(tk, id, "<|start|>")) {
        r->state = HEADER;
    } else if (is_piece(tk, id, "<|channel|>")) {
        r->state = CHANNEL;
        r->n = 0;
    } else if (is_piece(tk, id, "<|message|>")) {
        r->state = is_final(r) ? FINAL : THOUGHTS;
    } else if (is_piece(tk, id, "<|end|>")) {
        if (r->state == FINAL)
            return LT_CHAT_OVER;
        r->state = BETWEEN;
    } else if (r->state == CHANNEL) {
        name_channel(r, tk, id);
    } else if (r->state == FINAL) {
        return LT_CHAT_SHOWN;
    }
    return LT_CHAT_HIDDEN;
}
