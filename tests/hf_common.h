/* hf_common.h - a small Hugging Face folder: llama, one layer, two shards, a byte-level vocabulary. */
#ifndef LT_TESTS_HF_COMMON_H
#define LT_TESTS_HF_COMMON_H

#include "format_common.h"

#define LLAMA_CONFIG                                                                                                  \
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,"                       \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":6,\"max_position_embeddings\":64,"                \
    "\"rms_norm_eps\":1e-05,\"eos_token_id\":[2,5],\"torch_dtype\":\"float32\","                                          \
    "\"rope_theta\":10000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"             \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32}}"

#define BPE_TOKENIZER                                                                                                 \
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":2,\"content\":\"<end>\",\"special\":true},"                           \
    "{\"id\":3,\"content\":\" x\",\"special\":false},{\"id\":9,\"content\":\"<image>\",\"special\":true}],"               \
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","               \
    "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]},"               \
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"          \
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"\\u0120\":1,\"\\u0120a\":5},\"merges\":[[\"\\u0120\",\"a\"]]}}"

#define TOKENIZER_CONFIG                                                                                              \
    "{\"bos_token\":null,\"eos_token\":{\"content\":\"<end>\",\"lstrip\":false},\"chat_template\":"                       \
    "[{\"name\":\"rag\",\"template\":\"no\"},{\"name\":\"default\",\"template\":\"{{ \\\"yes\\\" }}\"}]}"

typedef struct st_tensor { const char *name; uint64_t rows, cols; } st_tensor; /* cols 0: a vector */

/* All f32 zeros. */
static inline void save_safetensors(const char *file, const st_tensor *t, size_t n)
{
    char h[8192];
    size_t at = 0, end = 0;
    static buf b;
    at += (size_t)snprintf(h, sizeof h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        size_t bytes = (size_t)(t[i].rows * (t[i].cols ? t[i].cols : 1) * 4);
        char shape[64];
        snprintf(shape, sizeof shape, t[i].cols ? "%d,%d" : "%d", (int)t[i].rows, (int)t[i].cols);
        at += (size_t)snprintf(h + at, sizeof h - at, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", t[i].name, shape, end,
                               end + bytes);
        end += bytes;
    }
    snprintf(h + at, sizeof h - at, "}");
    b.n = 0;
    s_file(&b, h, end);
    save(file, b.v, b.n);
}

static inline void save_text(const char *file, const char *text) { save(file, text, strlen(text)); }

#define L0 "model.layers.0."
static const st_tensor shard_1[] = {{"model.embed_tokens.weight", 6, 8}, {L0 "input_layernorm.weight", 8, 0}, {L0 "self_attn.q_proj.weight", 8, 8},
    {L0 "self_attn.k_proj.weight", 4, 8}, {L0 "self_attn.v_proj.weight", 4, 8}, {L0 "self_attn.o_proj.weight", 8, 8}};
static const st_tensor shard_2[] = {{L0 "post_attention_layernorm.weight", 8, 0}, {L0 "mlp.gate_proj.weight", 16, 8}, {L0 "mlp.up_proj.weight", 16, 8},
    {L0 "mlp.down_proj.weight", 8, 16}, {"model.norm.weight", 8, 0}, {"lm_head.weight", 6, 8}, {"vision.patch", 3, 3}};

static inline void save_index(const char *file, const char *second)
{
    char t[4096];
    size_t at = (size_t)snprintf(t, sizeof t, "{\"metadata\":{\"total_size\":9},\"weight_map\":{");
    for (size_t i = 0; i < 6; i++) at += (size_t)snprintf(t + at, sizeof t - at, "\"%s\":\"s1.safetensors\",", shard_1[i].name);
    for (size_t i = 0; i < 7; i++) at += (size_t)snprintf(t + at, sizeof t - at, "\"%s\":\"%s\"%s", shard_2[i].name, second, i < 6 ? "," : "}}");
    save_text(file, t);
}

static inline void make_hf_folder(const char *dir)
{
    char p[8][128];
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "s1.safetensors", "s2.safetensors",
                                        "model.safetensors.index.json"};
    for (int i = 0; i < 6; i++) snprintf(p[i], sizeof p[i], "%s/%s", dir, names[i]);
    mkdir(test_path(dir), 0700);
    save_text(p[0], LLAMA_CONFIG);
    save_text(p[1], BPE_TOKENIZER);
    save_text(p[2], TOKENIZER_CONFIG);
    save_safetensors(p[3], shard_1, 6);
    save_safetensors(p[4], shard_2, 7);
    save_index(p[5], "s2.safetensors");
}

#endif
