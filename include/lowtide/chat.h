/* chat.h - messages to the prompt a model was trained on.
 *
 *     lt_chat_template t;
 *     lt_chat_detect(file, &t, &err);            // from the file's own template, or E_UNSUPPORTED
 *     lt_chat_message m[] = {{"user", "Why is the sky blue?"}};
 *     char *text;  size_t n;
 *     lt_chat_render(ctx, t, m, 1, true, &text, &n, &err);
 *     lt_chat_free(ctx, text, n);
 *
 * Order      roles as given: an optional "system", then "user" and "assistant" in turn.
 * Lifetime   the rendered text is the caller's.
 * Threads    any.
 * Errors     a template that is not known is E_UNSUPPORTED with the list of names to choose
 *            from; a role the family has no place for is E_INVALID.
 */
#ifndef LT_CHAT_H
#define LT_CHAT_H

#include "lowtide/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name for --chat-template", "who uses it") */
#define LT_CHAT_LIST(X)                                          \
    X(CHATML,  "chatml",  "ChatML: Qwen 1.5 and many finetunes") \
    X(SMOLLM2, "smollm2", "SmolLM2: ChatML with its own default system message") \
    X(QWEN2,   "qwen2",   "Qwen 2.5: ChatML with its own default system message") \
    X(QWEN3,   "qwen3",   "Qwen 3: ChatML that forgets the thoughts of earlier turns") \
    X(LLAMA2,  "llama2",  "Llama 2 chat")                        \
    X(LLAMA3,  "llama3",  "Llama 3")                             \
    X(LLAMA31, "llama3.1", "Llama 3.1 and 3.2: always a system message, with the vendor's dates") \
    X(MISTRAL1, "mistral-v1", "Mistral instruct v0.1 and v0.2, Mixtral") \
    X(MISTRAL, "mistral", "Mistral instruct v0.3")               \
    X(TEKKEN,  "tekken",  "Mistral Nemo")                        \
    X(GEMMA,   "gemma",   "Gemma 2 and 3")                       \
    X(PHI3,    "phi3",    "Phi 3 and 3.5")                       \
    X(PHI4,    "phi4",    "Phi 4 mini")                          \
    X(HARMONY, "harmony", "gpt-oss")

typedef enum lt_chat_template {
#define LT_X(name, text, who) LT_CHAT_##name,
    LT_CHAT_LIST(LT_X)
#undef LT_X
    LT_CHAT_COUNT
} lt_chat_template;

typedef struct lt_chat_message { const char *role, *content; } lt_chat_message;

LT_API const char *lt_chat_name(lt_chat_template t);
LT_API bool lt_chat_by_name(const char *name, lt_chat_template *out);
LT_API LT_NODISCARD lt_status lt_chat_detect(const lt_modelfile *f, lt_chat_template *out, lt_err *err);
/* A space that the tokenizer puts in front of text behind a control token (Mistral up to v0.3)
 * is not written here as well. `open`: ends with the header of the assistant's turn. The text holds control tokens in
 * their spelling and no bos: encode with LT_ENCODE_BOS | LT_ENCODE_SPECIAL. */
LT_API LT_NODISCARD lt_status
lt_chat_render(lt_ctx *ctx, lt_chat_template t, const lt_chat_message *m, size_t n, bool open,
               char **text, size_t *bytes, lt_err *err);
LT_API void lt_chat_free(lt_ctx *ctx, char *text, size_t bytes);

/* An answer behind an `open` prompt, token by token, zeroed before each answer. Of most families all of it is for the user;
 * harmony's comes in messages of a channel each, of which only the one called final is. */
typedef struct lt_chat_reader { int state; size_t n; char channel[16]; } lt_chat_reader;
typedef enum lt_chat_part {
    LT_CHAT_SHOWN,  /* decode it */
    LT_CHAT_HIDDEN, /* evaluate it, and that is all */
    LT_CHAT_OVER    /* ends the answer, where lt_tokenizer_ends does not know: by its place */
} lt_chat_part;
LT_API lt_chat_part lt_chat_read(lt_chat_reader *r, lt_chat_template t, const lt_tokenizer *tk, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
