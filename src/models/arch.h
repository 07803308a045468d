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
    const float *factors_short; uint32_t original_context; /* phi3: short ones up to original_context; YARN: trained length */
    double   beta_fast, beta_slow; /* YARN: turns within original_context that bound the ramp */
    bool     ramp_exact;     /* YARN: its ends as computed, not rounded away from each other */
} lt_rope_set;

typedef struct lt_hparams {
    uint32_t layers, embd, ff, heads, kv_heads, head_dim, vocab, context;
    uint32_t window;       /* keys a windowed layer sees, itself included; 0: every layer is global */
    uint32_t window_every; /* with a window: layer l is global when l % window_every == window_every - 1; 0: none is */
    uint32_t experts, experts_used, expert_ff; /* a feed-forward unit's experts, those of a token, rows of one; 0: dense */
    float    norm_eps, embd_scale, attn_scale;
    float    attn_cap, logit_cap; /* soft caps of attention scores and of logits; 0: none */
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

/* KV of the layers that share one page table. One group where all layers see the same window
 * (0: full context); else group 0 is the global layers and group 1 the windowed ones. */
typedef struct lt_kv_group { uint32_t layers, window; uint64_t page_bytes; } lt_kv_group;

typedef struct lt_arch lt_arch;
struct lt_model {
    lt_ctx        *ctx;
    lt_modelfile  *file;
    const lt_arch *arch;
    lt_hparams     hp;
    lt_weight     *weights; size_t n_weights, cap_weights;
    uint32_t      *slots;       /* [n_tensors of arch][layers]: index into weights, UINT32_MAX where absent */
    uint32_t       embd_weight; /* index of the host embedding matrix */
    float         *factors;     /* of the rope sets */
    size_t         n_factors;
    lt_model_info  info;
};

typedef struct lt_kv_desc { lt_dtype dtype; lt_attention attention; } lt_kv_desc;

/* Builds the graph of one pass: embedding input to logits, for T tokens and R rows. Layer l's
 * cache layout is in its ATTENTION and KV_STORE params. */
typedef void lt_build_fn(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g);

/* Key without "{arch}."; type 'u' uint32_t, 'f' float, 'd' double. An array is one value when all
 * its elements are equal. */
typedef struct lt_hparam_row { const char *key; size_t offset; char type; bool required; double dflt, min, max; } lt_hparam_row;
typedef struct lt_tensor_row {
    const char *name;    /* "blk.%u.attn_q.weight" once a layer, or without %u once */
    const char *rows, *cols; /* expressions over hyperparameters: "heads*head_dim"; cols NULL: a vector */
    unsigned    flags;   /* LT_ROW_* */
} lt_tensor_row;
enum {
    LT_ROW_OPTIONAL = 1,
    LT_ROW_F32 = 2,  /* kept and used in f32: norms, biases */
    LT_ROW_HOST = 4, /* read by the host only */
    LT_ROW_TIED = 8, /* where absent, the bytes of token_embd.weight; the entry keeps the row's name */
    LT_ROW_DENSE = 16, LT_ROW_EXPERTS = 32, /* no part of a model with experts, of one without */
    LT_ROW_EACH = 64 /* a matrix of each expert, one after another: [experts, rows, cols] */
};

struct lt_arch {
    const char *name, *text;
    const lt_hparam_row *hparams; size_t n_hparams;
    const lt_tensor_row *tensors; size_t n_tensors;
    lt_status (*derive)(struct lt_model *m, lt_err *err); /* what rows can't say: head_dim default, rope sets */
    lt_build_fn *build;
    bool share_all; /* shares of a token's experts are those of a softmax over all experts */
};
extern const lt_arch lt__arch_llama, lt__arch_qwen2, lt__arch_qwen3, lt__arch_qwen3moe, lt__arch_gemma2, lt__arch_gemma3, lt__arch_phi3,
    lt__arch_gpt_oss, lt__arch_olmoe;

/* The graph, its KV groups. Initialises g; on failure g is empty again. The caller deinits it. */
LT_NODISCARD lt_status lt__model_build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g, lt_kv_group groups[2], uint32_t *n_groups, lt_err *err);
/* Rope angles of set `set`: cos and sin of n positions, out[n, rotated/2, 2]. context: the
 * session's, which chooses between long and short factors. */
void lt__model_rope(const struct lt_model *m, uint32_t set, uint32_t context, const int32_t *pos, uint32_t n, float *out);

/* Between the files of models/. */

bool lt__layer_global(const lt_hparams *hp, uint32_t layer);
/* KV groups and, per kind of layer, its group. E_UNSUPPORTED when head_dim does not divide into blocks of kv. */
LT_NODISCARD lt_status lt__model_groups(const struct lt_model *m, const lt_kv_desc *kv, lt_kv_group groups[2], uint32_t *n_groups, lt_err *err);
/* Index of a tensor of a layer ("attn_q.weight") or of the model ("output.weight", layer -1); UINT32_MAX: absent. */
uint32_t lt__model_find(const struct lt_model *m, int32_t layer, const char *name);
/* "heads*head_dim+2*kv_heads*head_dim": + of * and / of names and integers. False on a name it does
 * not know, an overflow, a division with a rest. */
bool lt__rows_eval(const lt_hparams *hp, const char *expr, uint64_t *out);
LT_NODISCARD lt_status lt__rows_hparams(struct lt_model *m, lt_err *err);
/* A key "{arch}.<key>" outside of the rows; *out keeps its value when the key is absent. */
LT_NODISCARD lt_status lt__rows_u32(const struct lt_model *m, const char *key, uint32_t min, uint32_t max, uint32_t *out, lt_err *err);
LT_NODISCARD lt_status lt__rows_f64(const struct lt_model *m, const char *key, double min, double max, double *out, lt_err *err);
LT_NODISCARD lt_status lt__rows_bool(const struct lt_model *m, const char *key, bool *out, lt_err *err);
/* By its whole name; NULL where absent. */
LT_NODISCARD lt_status lt__rows_str(const struct lt_model *m, const char *name, const char **out, lt_err *err);
/* head_dim, rotated, attention scale, one rope set from the rope.* keys, the counts of experts: what every architecture
 * starts from. */
LT_NODISCARD lt_status lt__derive_common(struct lt_model *m, lt_rope_style style, lt_err *err);
/* Reads factors from rows rope_freqs, rope_factors_long and _short, or from lowtide.rope.* keys. */
LT_NODISCARD lt_status lt__rope_load(struct lt_model *m, lt_err *err);
const char *lt__model_path(const struct lt_model *m); /* of the first part, for errors */

#endif
