/* blocks.h - the parts transformers share, each a few nodes; builders read like the model's page.
 *
 *     lt__blocks b;
 *     lt__blocks_begin(&b, m, kv, g);
 *     for (uint32_t l = 0; l < m->hp.layers; l++) {
 *         lt__block_layer(&b, l);
 *         lt__block_add(&b, "attn_residual", lt__block_self_attention(&b));
 *         lt__block_add(&b, "ffn_residual", lt__block_ffn(&b, LT_OP_SILU_MUL));
 *     }
 *     lt__blocks_head(&b);
 *
 * Failures stay in the graph, as those of its builder calls do. */
#ifndef LT_MODELS_BLOCKS_H
#define LT_MODELS_BLOCKS_H

#include "models/arch.h"

/* An activation that feeds products: quantised once, when the first quantised weight asks. It
 * must not change between its first product and its last. */
typedef struct lt__act { lt_tid f32, q8a; const char *name; } lt__act;

typedef struct lt__blocks {
    const struct lt_model *m;
    lt_graph   *g;
    lt_dtype    kv_dtype;
    lt_attention attention;
    lt_kv_group groups[2];
    uint32_t    n_groups, group, rope_set; /* group and set of the current layer */
    uint32_t    place[2];                  /* layers of each group built so far */
    lt_tid      pos, rows, table[2], cache[2], angles[2];
    lt_tid      h;                         /* the residual stream, [TOKENS, embd] */
} lt__blocks;

void    lt__blocks_begin(lt__blocks *b, const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g);
void    lt__block_layer(lt__blocks *b, uint32_t layer);
lt__act lt__block_act(lt_tid f32, const char *name);
/* Of a fresh tensor, or in place; the weight is "<name>.weight" of the layer. */
lt__act lt__block_norm(lt__blocks *b, lt_tid x, const char *name);
void    lt__block_norm_inplace(lt__blocks *b, lt_tid x, const char *name);
/* "<name>.weight", and "<name>.bias" where the model has it. */
lt_tid  lt__block_linear(lt__blocks *b, lt__act *x, const char *name);
lt_tid  lt__block_columns(lt__blocks *b, lt_tid x, uint64_t first, uint64_t n);
lt_tid  lt__block_heads(lt__blocks *b, lt_tid x, uint64_t first, uint32_t heads); /* [.., heads, head_dim] */
/* Rotates q and k, stores k and v, attends. Result [TOKENS, heads*head_dim]. */
lt__act lt__block_attention(lt__blocks *b, lt_tid q, lt_tid k, lt_tid v);
/* The usual halves of a layer, up to the residual: norm, q, k, v, their norms where the model has
 * them, attention, output; norm, gate and up, act, down. Results [TOKENS, embd]. */
lt_tid  lt__block_self_attention(lt__blocks *b);
lt_tid  lt__block_ffn(lt__blocks *b, lt_op op);
/* Likewise, "<norm>.weight" first, of the experts that the router chooses (docs/models/experts.md). `all`: shares out of the
 * scores of all experts, not of the chosen only; p: of op. */
lt_tid  lt__block_experts(lt__blocks *b, const char *norm, lt_op op, const lt_op_params *p);
/* gate is overwritten by act(gate) * up. */
lt__act lt__block_gated(lt__blocks *b, lt_op op, lt_tid gate, lt_tid up);
void    lt__block_add(lt__blocks *b, const char *name, lt_tid x); /* h += x */
void    lt__blocks_head(lt__blocks *b); /* with the model's soft cap of logits, if any */
/* Nothing but the usual halves, with SiLU; the second with experts where the model has them. */
lt_build_fn lt__usual_build;
/* Gemma 2 and 3: scaled embeddings, a norm before and after each half of a layer, GELU. */
lt_build_fn lt__gemma_build;
/* The common values and Gemma's scales. Files do not say that of the queries; of all sizes only the 27B, known by its
 * layers, has another than 1/sqrt(head_dim). */
LT_NODISCARD lt_status lt__gemma_derive(struct lt_model *m, uint32_t layers_of_27b, lt_err *err);

#endif
