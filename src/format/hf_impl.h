/* hf_impl.h - a Hugging Face folder while it is translated. */
#ifndef LT_FORMAT_HF_IMPL_H
#define LT_FORMAT_HF_IMPL_H

#include <jansson.h>

#include "format/modelfile_impl.h"

typedef struct lt__hf {
    lt_modelfile *f;
    const char   *dir;
    json_t       *config, *text;  /* text: the language model's part, often config itself */
    json_t       *generation;     /* may be NULL */
    char          arch[16];
    uint64_t      vocab;          /* rows of the embedding matrix; bounds every token id */
    lt_err       *err;
} lt__hf;

/* "DIR/name" in buf; NULL when too long. */
const char *lt__hf_path(const lt__hf *h, const char *name, char *buf, size_t n);
bool lt__hf_has(const lt__hf *h, const char *name);
/* tokenizer.json, tokenizer_config.json and chat_template.jinja into tokenizer.* keys. */
LT_NODISCARD lt_status lt__hf_tokenizer(lt__hf *h);

#endif
