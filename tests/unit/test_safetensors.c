#include <jansson.h>
#include <math.h>

#include "format/json.h"
#include "hf_common.h"

static lt_ctx *ctx;
static lt_err err;

static lt_modelfile *open_ok(const char *path)
{
    lt_modelfile *f = NULL;
    if (lt_modelfile_open(ctx, path, &f, &err) != LT_OK) fail_msg("%s", err.text);
    return f;
}

static void open_fails(const char *path, lt_status want, const char *text)
{
    lt_modelfile *f = NULL;
    lt_status s = lt_modelfile_open(ctx, path, &f, &err);
    if (s != want) fail_msg("%s instead of %s: %s", lt_status_name(s), lt_status_name(want), err.text);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_null(f);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
}

static void a_bare_file_keeps_its_names(void **state)
{
    static buf b;
    (void)state;
    b.n = 0;
    s_file(&b, "{\"__metadata__\":{\"format\":\"pt\",\"q\\u00e9\":\"\\ud83d\\ude42\"},"
               "\"w\":{\"data_offsets\":[4,28],\"dtype\":\"BF16\",\"shape\":[3,4]},\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
               "\"conv\":{\"dtype\":\"I8\",\"shape\":[2,1,3,2,1],\"data_offsets\":[28,40]},"
               "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[40,42]},\"new\":{\"dtype\":\"Q9\",\"shape\":[2],\"data_offsets\":[42,43]}}   ", 43);
    save("bare.safetensors", b.v, b.n);
    lt_modelfile *f = open_ok(test_path("bare.safetensors"));
    assert_string_equal(lt_modelfile_format(f), "safetensors");
    assert_int_equal(lt_modelfile_tensor_count(f), 5);
    const lt_tensor_info *t = lt_modelfile_tensor(f, "w");
    assert_true(t->dtype == LT_DTYPE_BF16 && t->ndim == 2 && t->dim[0] == 3 && t->dim[1] == 4 && t->bytes == 24 && t->offset == b.n - 39);
    t = lt_modelfile_tensor(f, "s");
    assert_true(t->dtype == LT_DTYPE_F32 && t->ndim == 1 && t->dim[0] == 1);
    t = lt_modelfile_tensor(f, "conv"); /* five dimensions: the outer two as one */
    assert_true(t->ndim == 4 && t->dim[0] == 2 && t->dim[1] == 3 && t->dim[2] == 2 && t->dim[3] == 1);
    t = lt_modelfile_tensor(f, "f8");
    assert_true(t->dtype == LT_DTYPE_COUNT && t->bytes == 2);
    assert_string_equal(t->type_name, "F8_E4M3");
    assert_string_equal(lt_modelfile_tensor(f, "new")->type_name, "Q9");
    assert_string_equal(lt_modelfile_str(f, "format", "?"), "pt");
    assert_string_equal(lt_modelfile_str(f, "q\xc3\xa9", "?"), "\xf0\x9f\x99\x82");
    assert_null(lt_modelfile_key(f, "lowtide.rope_style"));
    lt_modelfile_close(f);
}

static double f64(const lt_modelfile *f, const char *k)
{
    double d = NAN;
    if (!lt_modelfile_f64(f, k, &d)) fail_msg("%s is missing", k);
    return d;
}

static void check_llama_keys(const lt_modelfile *f)
{
    static const struct { const char *k; double v; } want[] = {
        {"llama.block_count", 1}, {"llama.context_length", 64}, {"llama.embedding_length", 8}, {"llama.feed_forward_length", 16},
        {"llama.attention.head_count", 2}, {"llama.attention.head_count_kv", 1}, {"llama.attention.key_length", 4},
        {"llama.attention.value_length", 4}, {"llama.attention.layer_norm_rms_epsilon", 1e-5}, {"llama.rope.freq_base", 1e4},
        {"llama.rope.dimension_count", 4}, {"llama.vocab_size", 6}, {"tokenizer.ggml.eos_token_id", 2}, {"tokenizer.ggml.eot_token_id", 5},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (f64(f, want[i].k) != want[i].v) fail_msg("%s is %g instead of %g", want[i].k, f64(f, want[i].k), want[i].v);
    assert_string_equal(lt_modelfile_str(f, "general.architecture", "?"), "llama");
    assert_string_equal(lt_modelfile_str(f, "lowtide.rope_style", "?"), "halves");
    /* theta 1e4, 4 rotated: pair 0 turns 32/2pi = 5.09 times in 32 positions: kept; pair 1 0.05 times: stretched by 8. */
    const lt_key *k = lt_modelfile_key(f, "lowtide.rope.factors");
    assert_true(k && k->elem_type == LT_KEY_FLOAT && k->n == 2 && k->v.f[0] == 1 && k->v.f[1] == 8);
}

static void check_llama_vocabulary(const lt_modelfile *f)
{
    static const char *const tokens[] = {"a", "\xc4\xa0", "<end>", " x", "[PAD4]", ("\xc4\xa0" "a")};
    static const int64_t types[] = {1, 1, 3, 4, 5, 1};
    const lt_key *k = lt_modelfile_key(f, "tokenizer.ggml.tokens"), *ty = lt_modelfile_key(f, "tokenizer.ggml.token_type"),
                 *m = lt_modelfile_key(f, "tokenizer.ggml.merges"), *e = lt_modelfile_key(f, "tokenizer.ggml.eos_token_ids");
    assert_true(k && ty && k->n == 6 && ty->n == 6); /* id 9 has no row in the embedding matrix */
    for (int i = 0; i < 6; i++) {
        assert_string_equal(k->v.s[i], tokens[i]);
        assert_int_equal(ty->v.i[i], types[i]);
    }
    assert_true(m && m->n == 1 && strcmp(m->v.s[0], "\xc4\xa0 a") == 0);
    assert_true(e && e->n == 2 && e->v.u[0] == 2 && e->v.u[1] == 5);
    assert_string_equal(lt_modelfile_str(f, "tokenizer.ggml.model", "?"), "gpt2");
    assert_string_equal(lt_modelfile_str(f, "tokenizer.ggml.pre", "?"), "smollm");
    assert_string_equal(lt_modelfile_str(f, "tokenizer.chat_template", "?"), "{{ \"yes\" }}");
}

static void a_folder_speaks_gguf(void **state)
{
    static const char *const names[] = {"token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
        "blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
        "blk.0.ffn_down.weight", "output_norm.weight", "output.weight", "vision.patch"};
    static const char *const ways[] = {"hf", "hf/model.safetensors.index.json"};
    (void)state;
    make_hf_folder("hf");
    for (int w = 0; w < 2; w++) {
        lt_modelfile *f = open_ok(test_path(ways[w]));
        assert_int_equal(lt_modelfile_parts(f), 2);
        assert_int_equal(lt_modelfile_tensor_count(f), 13);
        for (size_t i = 0; i < 13; i++)
            if (!lt_modelfile_tensor(f, names[i])) fail_msg("%s is missing", names[i]);
        assert_int_equal(lt_modelfile_tensor(f, "output.weight")->file, 1);
        assert_true(lt_modelfile_tensor(f, "output_norm.weight")->add == 0.0f);
        check_llama_keys(f);
        check_llama_vocabulary(f);
        lt_modelfile_close(f);
    }
}

static void a_folder_is_refused_by_name(void **state)
{
    (void)state;
    make_hf_folder("bad");
    save_index("bad/model.safetensors.index.json", "s3.safetensors");
    open_fails(test_path("bad"), LT_E_NOT_FOUND, "names the shard s3.safetensors, which is missing");
    save_index("bad/model.safetensors.index.json", "../s2.safetensors");
    open_fails(test_path("bad"), LT_E_FORMAT, "is not a plain file name");
    save_text("bad/model.safetensors.index.json", "{\"weight_map\":{\"model.norm.weight\":\"s1.safetensors\"}}");
    open_fails(test_path("bad"), LT_E_FORMAT, "model.norm.weight should be in s1.safetensors, but is nowhere");
    save_text("bad/model.safetensors.index.json", "{\"metadata\":{}}");
    open_fails(test_path("bad"), LT_E_FORMAT, "no weight_map");
    save_index("bad/model.safetensors.index.json", "s2.safetensors");
    static const struct { const char *file, *text, *want; lt_status s; } bad[] = {
        {"bad/config.json", "{}", "model_type is missing", LT_E_FORMAT},
        {"bad/config.json", "{\"model_type\":\"bert\"}", "model_type bert is not supported", LT_E_UNSUPPORTED},
        {"bad/config.json", "{\"model_type\":\"gpt_oss\"}", "model_type gpt_oss, a mixture of experts, is supported from a GGUF", LT_E_UNSUPPORTED},
        {"bad/config.json", "{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "duplicate", LT_E_FORMAT},
        {"bad/config.json", "{\"model_type\":\"llama\",\"hidden_size\":\"8\"}", "hidden_size is not a number", LT_E_FORMAT},
        {"bad/config.json", "{\"model_type\":\"llama\",\"hidden_size\":-8}", "hidden_size is -8", LT_E_FORMAT},
        {"bad/config.json", "{\"model_type\":\"llama\",\"num_attention_heads\":0}", "num_attention_heads is 0", LT_E_FORMAT},
        {"bad/config.json", "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", "rope scaling dynamic", LT_E_UNSUPPORTED},
        {"bad/config.json", "{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", "activation gelu", LT_E_UNSUPPORTED},
        {"bad/config.json", "{\"model_type\":\"qwen2\",\"use_sliding_window\":true}", "use_sliding_window", LT_E_UNSUPPORTED},
        {"bad/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}", "two tokens have the id 0", LT_E_FORMAT},
        {"bad/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", "merge 0 is not two pieces", LT_E_FORMAT},
        {"bad/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":5},\"merges\":[\"a b\"]}}",
         "merge 0 makes ab, which is no token", LT_E_FORMAT},
        {"bad/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "eos_token_id is 2, but there are only 1 tokens", LT_E_FORMAT},
        {"bad/tokenizer_config.json", "{\"eos_token\":", "the text ends", LT_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_text(bad[i].file, bad[i].text);
        open_fails(test_path("bad"), bad[i].s, bad[i].want);
        make_hf_folder("bad");
    }
    save_text("bad/config.json", "{\"model_type\":\"llama\",\"tie_word_embeddings\":false}");
    save_text("bad/model.safetensors.index.json", "{\"weight_map\":{\"model.embed_tokens.weight\":\"s1.safetensors\"}}");
    open_fails(test_path("bad"), LT_E_FORMAT, "no tensor lm_head.weight");
}

/* One folder of each other family: what is special to it. */
static void gemma_and_phi(void **state)
{
    static const st_tensor gemma[] = {{"language_model.model.embed_tokens.weight", 6, 8}, {"language_model.model.norm.weight", 8, 0},
        {"language_model.model.layers.0.post_attention_layernorm.weight", 8, 0}, {"language_model.model.layers.0.pre_feedforward_layernorm.weight", 8, 0},
        {"language_model.model.layers.0.self_attn.q_norm.weight", 4, 0}};
    static const st_tensor phi[] = {{"model.embed_tokens.weight", 6, 8}, {"lm_head.weight", 6, 8}, {L0 "self_attn.qkv_proj.weight", 16, 8},
        {L0 "mlp.gate_up_proj.weight", 32, 8}};
    (void)state;
    mkdir(test_path("gemma"), 0700);
    save_text("gemma/config.json", "{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,"
              "\"head_dim\":4,\"sliding_window\":512,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},\"query_pre_attn_scalar\":16}}");
    save_safetensors("gemma/model.safetensors", gemma, 5);
    lt_modelfile *f = open_ok(test_path("gemma/model.safetensors"));
    assert_true(lt_modelfile_tensor(f, "blk.0.post_attention_norm.weight")->add == 1.0f && lt_modelfile_tensor(f, "blk.0.ffn_norm.weight")->add == 1.0f);
    assert_true(lt_modelfile_tensor(f, "blk.0.attn_q_norm.weight")->add == 1.0f && lt_modelfile_tensor(f, "output_norm.weight")->add == 1.0f);
    assert_true(lt_modelfile_tensor(f, "token_embd.weight")->add == 0.0f);
    assert_true(f64(f, "gemma3.attention.scale") == 0.25 && f64(f, "gemma3.rope.scaling.factor") == 8 && f64(f, "gemma3.attention.head_count") == 8);
    assert_true(f64(f, "gemma3.rope.freq_base") == 1e6 && f64(f, "gemma3.rope.local.freq_base") == 1e4 && f64(f, "gemma3.attention.sliding_window") == 512);
    lt_modelfile_close(f);
    /* gemma2: caps; the activation its own code reads; every second layer windowed. */
    save_text("gemma/config.json", "{\"model_type\":\"gemma2\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,\"head_dim\":4,"
              "\"hidden_act\":\"gelu\",\"hidden_activation\":\"gelu_pytorch_tanh\",\"query_pre_attn_scalar\":144,\"attn_logit_softcapping\":20.0,"
              "\"final_logit_softcapping\":null,\"layer_types\":[\"sliding_attention\"]}");
    f = open_ok(test_path("gemma"));
    assert_true(lt_modelfile_tensor(f, "blk.0.post_attention_norm.weight")->add == 1.0f && lt_modelfile_tensor(f, "blk.0.ffn_norm.weight")->add == 1.0f);
    assert_true(f64(f, "gemma2.attn_logit_softcapping") == 20 && f64(f, "gemma2.final_logit_softcapping") == 0);
    assert_true(f64(f, "gemma2.attention.scale") == 1.0 / 12 && f64(f, "gemma2.attention.sliding_window") == 4096 && f64(f, "gemma2.rope.freq_base") == 1e4);
    lt_modelfile_close(f);
    save_text("gemma/config.json", "{\"model_type\":\"gemma2\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,\"head_dim\":4,"
              "\"sliding_window\":null,\"hidden_activation\":null}");
    f = open_ok(test_path("gemma"));
    assert_true(f64(f, "gemma2.attn_logit_softcapping") == 50 && f64(f, "gemma2.final_logit_softcapping") == 30 && f64(f, "gemma2.attention.sliding_window") == 0);
    lt_modelfile_close(f);
    save_text("gemma/config.json", "{\"model_type\":\"gemma2\",\"hidden_size\":8,\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"]}");
    open_fails(test_path("gemma"), LT_E_UNSUPPORTED, "only one sliding layer before each full one is supported for gemma2");
    save_text("gemma/config.json", "{\"model_type\":\"gemma2\",\"hidden_size\":8,\"num_hidden_layers\":1,\"attn_logit_softcapping\":-1}");
    open_fails(test_path("gemma"), LT_E_FORMAT, "attn_logit_softcapping is -1; 0 to 1000000 was expected");
    save_text("gemma/config.json", "{\"model_type\":\"gemma3_text\",\"hidden_size\":8,\"num_hidden_layers\":1,\"attn_logit_softcapping\":50}");
    open_fails(test_path("gemma"), LT_E_UNSUPPORTED, "attn_logit_softcapping is not supported");
    mkdir(test_path("phi"), 0700);
    save_text("phi/config.json", "{\"model_type\":\"phi3\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,"
              "\"partial_rotary_factor\":0.5,\"max_position_embeddings\":64,\"original_max_position_embeddings\":16,\"rope_scaling\":"
              "{\"type\":\"longrope\",\"long_factor\":[1,2.5],\"short_factor\":[1,1]}}");
    save_safetensors("phi/model.safetensors", phi, 4);
    f = open_ok(test_path("phi"));
    assert_true(lt_modelfile_tensor(f, "blk.0.attn_qkv.weight")->dim[0] == 16 && lt_modelfile_tensor(f, "blk.0.ffn_up.weight")->dim[0] == 32);
    assert_true(f64(f, "phi3.rope.dimension_count") == 4 && f64(f, "phi3.rope.scaling.original_context_length") == 16);
    assert_true(lt_modelfile_key(f, "lowtide.rope.factors_long")->v.f[1] == 2.5 && lt_modelfile_key(f, "lowtide.rope.factors_short")->n == 2);
    lt_modelfile_close(f);
}

/* Ranks r of merges become scores -r of what they make; the rank of the first merge that makes a piece counts. */
static void scores_follow_ranks(void **state)
{
    static const double want[] = {-5, -5, -5, 0, -1, -3};
    (void)state;
    make_hf_folder("spm");
    save_text("spm/tokenizer_config.json", "{\"add_bos_token\":true,\"bos_token\":\"a\"}");
    save_text("spm/tokenizer.json", "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"}]},\"model\":"
              "{\"merges\":[\"a b\",\"ab c\",[\"a\",\"bc\"],\"b c\"],\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"c\","
              "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"bc\":5}}}");
    lt_modelfile *f = open_ok(test_path("spm"));
    const lt_key *k = lt_modelfile_key(f, "tokenizer.ggml.scores");
    assert_true(k && k->n == 6);
    for (int i = 0; i < 6; i++) assert_true(k->v.f[i] == want[i]);
    assert_string_equal(lt_modelfile_str(f, "tokenizer.ggml.model", "?"), "llama");
    assert_true(lt_modelfile_bool(f, "tokenizer.ggml.add_space_prefix", false) && lt_modelfile_bool(f, "tokenizer.ggml.add_bos_token", false));
    assert_true(f64(f, "tokenizer.ggml.unknown_token_id") == 2 && lt_modelfile_key(f, "tokenizer.ggml.token_type")->v.i[2] == 2);
    assert_null(lt_modelfile_key(f, "tokenizer.ggml.merges"));
    lt_modelfile_close(f);
}

static bool pull_accepts(const char *text, size_t n)
{
    lt__json j;
    lt__json_init(&j, ctx, "x.json", text, n);
    lt__json_skip(&j);
    return lt__json_done(&j, &err) == LT_OK;
}

/* The pulled JSON against the library's tree, on every one-byte change of a text with all of the grammar. */
static void json_agrees_with_the_library(void **state)
{
    static const char text[] = "{\"k\":[1,-0.5e+3,true,false,null,{}],\"\\u00e9\\n\\ud83d\\ude42\":\"\xc3\xa9\",\"o\":{\"a\":[[]],\"b\":0}}";
    static const char bytes[] = "\"\\,:[]{}0-+.eEtfn u\xff\x80\xc3\x01";
    size_t same = 0, accepted = 0;
    (void)state;
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (size_t k = 0; k < sizeof bytes - 1; k++) {
            char t[sizeof text];
            json_error_t e;
            memcpy(t, text, sizeof t);
            t[i] = bytes[k];
            json_t *tree = json_loadb(t, sizeof t - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
            bool mine = pull_accepts(t, sizeof t - 1);
            if ((tree != NULL) != mine) fail_msg("%s: library %d, ours %d (%s)", t, tree != NULL, mine, mine ? "" : err.text);
            json_decref(tree);
            same++;
            accepted += mine;
        }
    assert_true(accepted > 100 && accepted < same);
    print_message("%zu texts judged alike, %zu of them valid\n", same, accepted);
}

static int setup(void **state) { return lt_ctx_create(NULL, &ctx, &err) == LT_OK ? make_dir(state) : -1; }
static int teardown(void **state)
{
    lt_ctx_destroy(ctx);
    return drop_dir(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_file_keeps_its_names), cmocka_unit_test(a_folder_speaks_gguf), cmocka_unit_test(a_folder_is_refused_by_name),
        cmocka_unit_test(gemma_and_phi),               cmocka_unit_test(scores_follow_ranks),  cmocka_unit_test(json_agrees_with_the_library),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
