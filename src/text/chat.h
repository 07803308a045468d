/* chat.h - the fingerprint by which a template is known. */
#ifndef LT_TEXT_CHAT_H
#define LT_TEXT_CHAT_H

#include "lowtide/chat.h"

/* Of what a Jinja template does: its tokens and the text it writes; white space inside tags, kinds
 * of quotes, comments and dashes that change nothing do not count. */
uint64_t lt__chat_fingerprint(const char *text, size_t n);
/* The family whose published template `text` is; false where it is none. */
bool lt__chat_known(const char *text, size_t n, lt_chat_template *out);

#endif
