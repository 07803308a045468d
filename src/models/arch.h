/* arch.h - an architecture as data: hyperparameter rows, tensor rows, a builder. */
#ifndef LT_MODELS_ARCH_H
#define LT_MODELS_ARCH_H

#include "graph/graph.h"
#include "lowtide/model.h"

typedef enum lt_rope_scaling { LT_ROPE_SCALE_NONE, LT_ROPE_SCALE_LINEAR, LT_ROPE_SCALE_FACTORS, LT_ROPE_SCALE_YARN } lt_rope_scaling;

/* One table of angles; layers choose a set (gemma3: local and global). */
typedef struct lt_rope_set {
    double   base;
    uint32_t rotated;
    lt_rope_scaling scaling;
    double   factor;         /* LINEAR: positions divided by it */
    double   magnitude;      /* cos and sin times this; 1 usually (phi3 long rope) */
    const float *factors;    /* FACTORS: inverse frequencies divided by these, rotated/2; owned by the model */
    const float *factors_short; uint32_t original_context; /* phi3: short ones up to original_context */
} lt_rope_set;

typedef struct lt_hparams {
    uint32_t layers, embd, ff, heads, kv_heads, head_dim, vocab, context;
    uint32_t window, window_every; /* gemma3: every window_every-th layer is global, the others see `window`; 0: all global */
    float    norm_eps, embd_scale, attn_scale;
    lt_rope_style rope_style;
    lt_rope_set   rope[2];
    uint32_t      rope_sets;
} lt_hparams;

typedef struct lt_weight {
    char     name[64];
    const lt_tensor_info *info; /* of the file */
    lt_dtype dtype;             /* in device memory: F32 for norms and biases whatever the file holds */
    uint64_t dim[4];            /* outermost first */
    uint32_t ndim;
    uint64_t bytes;             /* in device memory */
    bool     converted;         /* read through f32 conversion (norms, biases), with info->add */
    bool     on_host;           /* never on the device: the embedding rows (also when tied: then it is listed twice) */
} lt_weight;

/* KV of the layers that share one page table. Group 0: full context; group 1: windowed. */
typedef struct lt_kv_group { uint32_t layers, window; uint64_t page_bytes; } lt_kv_group;

typedef struct lt_arch lt_arch;
struct lt_model {
    lt_ctx        *ctx;
    lt_modelfile  *file;
    const lt_arch *arch;
    lt_hparams     hp;
    lt_weight     *weights; size_t n_weights;
    uint32_t       embd_weight; /* index of the host embedding matrix */
    lt_model_info  info;
};

typedef struct lt_kv_desc { lt_dtype dtype; } lt_kv_desc;

/* Builds the graph of one pass: embedding input to logits, for T tokens and R rows.
 * Fills groups[2]; layer l's cache layout is in its ATTENTION and KV_STORE params. */
typedef void lt_build_fn(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g);

typedef struct lt_hparam_row { const char *key; size_t offset; char type; bool required; double dflt, min, max; } lt_hparam_row;
typedef struct lt_tensor_row {
    const char *name;    /* "blk.%u.attn_q.weight" once a layer, or without %u once */
    const char *rows, *cols; /* expressions over hyperparameters: "heads*head_dim"; cols NULL: a vector */
    unsigned    flags;   /* LT_ROW_* */
} lt_tensor_row;
enum { LT_ROW_OPTIONAL = 1, LT_ROW_F32 = 2 /* kept and used in f32 */, LT_ROW_HOST = 4, LT_ROW_TIED = 8 /* falls back to token_embd */ };

struct lt_arch {
    const char *name, *text;
    const lt_hparam_row *hparams; size_t n_hparams;
    const lt_tensor_row *tensors; size_t n_tensors;
    lt_status (*derive)(struct lt_model *m, lt_err *err); /* what rows can't say: head_dim default, rope sets */
    lt_build_fn *build;
};
extern const lt_arch lt__arch_llama, lt__arch_qwen2, lt__arch_qwen3, lt__arch_gemma3, lt__arch_phi3;

/* The graph, its KV groups, and rope angles: cos and sin of n positions, [n, rotated/2, 2]. */
LT_NODISCARD lt_status lt__model_build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g, lt_kv_group groups[2], uint32_t *n_groups, lt_err *err);
/* context: the session's, which chooses between long and short factors. */
void lt__model_rope(const struct lt_model *m, uint32_t set, uint32_t context, const int32_t *pos, uint32_t n, float *out);
/* Embedding rows as f32, dequantised by lt_dtype_to_f32, times nothing. Reads through `read`. */
#endif
