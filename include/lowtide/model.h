/* model.h - an opened model: its architecture, hyperparameters and weights, no bytes loaded.
 *
 *     lt_model *m;
 *     lt_model_open(ctx, "SmolLM2.gguf", &m, &err);
 *     const lt_model_info *i = lt_model_get_info(m);
 *     printf("%s, %u layers\n", i->arch, i->layers);
 *     lt_model_close(m);
 *
 * Order      plan.h and session.h follow.
 * Lifetime   info and file are borrowed until close; plans and sessions borrow the model.
 * Threads    immutable after open.
 * Errors     E_FORMAT names the key or tensor that is missing or wrong; E_UNSUPPORTED names
 *            the architecture or the tensor's type.
 */
#ifndef LT_MODEL_H
#define LT_MODEL_H

#include "lowtide/modelfile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_model lt_model;

typedef struct lt_model_info {
    const char *arch, *name;       /* "llama", "Smollm2 135M ..." ("" when the file has none) */
    uint32_t layers, embd, ff, heads, kv_heads, head_dim, vocab, context, window; /* window 0: none */
    uint32_t experts, experts_used; /* of a feed-forward unit, and of those a token's; 0: dense */
    uint64_t params, weight_bytes; /* of the tensors the graph uses; a tied matrix counts once */
    uint64_t tensors, skipped;     /* skipped: in the file but not in the graph; named in the log */
    const char *main_dtype;        /* dtype that holds most bytes */
} lt_model_info;

LT_API LT_NODISCARD lt_status
lt_model_open(lt_ctx *ctx, const char *path, lt_model **out, lt_err *err);
LT_API void lt_model_close(lt_model *m);
LT_API const lt_model_info *lt_model_get_info(const lt_model *m);
LT_API const lt_modelfile *lt_model_get_file(const lt_model *m);
/* i-th supported architecture and one line about it; NULL past the end. */
LT_API const char *lt_model_arch_at(uint32_t i, const char **text);

#ifdef __cplusplus
}
#endif
#endif
