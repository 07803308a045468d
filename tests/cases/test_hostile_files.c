/* Malformed GGUF and safetensors files: each is refused with a sentence that names what is wrong, in less than 50 ms and
 * 16 MiB above the file's size. Those named text_NN are of the cases users met elsewhere. */
#include "format_common.h"

enum { LIMIT_NS = 50 * 1000 * 1000, LIMIT_BYTES = 16 << 20 };

typedef struct hostile { const char *name, *want; void (*build)(buf *b); } hostile;

#define BUILD(fn, ...) static void fn(buf *b) { __VA_ARGS__ }
#define T1(b, dims, type, offset) g_head(b, 3, 1, 0), g_tensor(b, "t", dims, type, offset), b_pad(b, 32), b_zeros(b, 64)

/* ---- GGUF: the head ---- */
BUILD(g_empty, (void)b;)
BUILD(g_magic_only, b_text(b, "GGUF");)
BUILD(g_wrong_magic, b_text(b, "GGUE"), b_zeros(b, 40);)
BUILD(g_version_1, g_head(b, 1, 0, 0), b_zeros(b, 40);)
BUILD(g_version_4, g_head(b, 4, 0, 0), b_zeros(b, 40);)
BUILD(g_big_endian, g_head(b, 0x03000000, 0, 0), b_zeros(b, 40);)
BUILD(g_huge_tensors, g_head(b, 3, UINT64_MAX, 0), b_zeros(b, 64);)
BUILD(g_huge_keys, g_head(b, 3, 0, 1ull << 60), b_zeros(b, 64);)
BUILD(g_wrapping_counts, g_head(b, 3, UINT64_MAX / 33 + 1, UINT64_MAX / 14 + 1), b_zeros(b, 64);)
BUILD(g_more_tensors_than_room, g_head(b, 3, 3, 0), b_zeros(b, 64);)

/* ---- GGUF: keys ---- */
BUILD(g_key_empty_name, g_head(b, 3, 0, 1), b_u64(b, 0), b_u32(b, 4), b_u32(b, 1), b_zeros(b, 32);)
BUILD(g_key_name_past_end, g_head(b, 3, 0, 1), b_u64(b, 5000), b_zeros(b, 64);)
BUILD(g_key_name_huge, g_head(b, 3, 0, 1), b_u64(b, UINT64_MAX - 3), b_zeros(b, 64);)
BUILD(g_key_name_not_utf8, g_head(b, 3, 0, 1), g_key_u32(b, "a\xff\xfe", 1);)
BUILD(g_key_name_nul, g_head(b, 3, 0, 1), b_u64(b, 3), b_raw(b, "a\0b", 3), b_u32(b, 4), b_u32(b, 1);)
BUILD(g_key_name_escape, g_head(b, 3, 0, 1), g_key_u32(b, "a\x1b[31m", 1);)
BUILD(g_key_type_13, g_head(b, 3, 0, 1), g_key(b, "a", 13), b_zeros(b, 32);)
BUILD(g_key_type_huge, g_head(b, 3, 0, 1), g_key(b, "a", 0xffffffff), b_zeros(b, 32);)
BUILD(g_key_twice, g_head(b, 3, 0, 2), g_key_u32(b, "a.b", 1), g_key_u32(b, "a.b", 2);)
BUILD(g_string_past_end, g_head(b, 3, 0, 1), g_key(b, "a", 8), b_u64(b, 100), b_zeros(b, 32);)
BUILD(text_28_string_of_gib, g_head(b, 3, 0, 1), g_key(b, "a", 8), b_u64(b, 3ull << 30), b_zeros(b, 32);)
BUILD(g_string_wraps, g_head(b, 3, 0, 1), g_key(b, "a", 8), b_u64(b, UINT64_MAX), b_zeros(b, 32);)
BUILD(g_bool_of_two, g_head(b, 3, 0, 1), g_key(b, "a", 7), b_u8(b, 2), b_zeros(b, 32);)
BUILD(g_array_of_arrays, g_head(b, 3, 0, 1), g_key_array(b, "nested.key", 9, 1), b_zeros(b, 64);)
BUILD(g_array_type, g_head(b, 3, 0, 1), g_key_array(b, "a", 77, 1), b_zeros(b, 64);)
BUILD(g_array_huge, g_head(b, 3, 0, 1), g_key_array(b, "a", 4, 1ull << 62), b_zeros(b, 64);)
BUILD(g_array_wraps, g_head(b, 3, 0, 1), g_key_array(b, "a", 4, (1ull << 62) + 1), b_zeros(b, 64);)
BUILD(g_array_strings_huge, g_head(b, 3, 0, 1), g_key_array(b, "a", 8, 1ull << 61), b_zeros(b, 64);)
BUILD(g_array_string_past_end, g_head(b, 3, 0, 1), g_key_array(b, "a", 8, 2), b_str(b, "x"), b_u64(b, 99), b_zeros(b, 8);)
BUILD(g_array_bool_of_nine, g_head(b, 3, 0, 1), g_key_array(b, "a", 7, 2), b_u8(b, 1), b_u8(b, 9), b_zeros(b, 8);)

/* ---- GGUF: alignment and splits ---- */
BUILD(text_29_align_0, g_head(b, 3, 0, 1), g_key_u32(b, "general.alignment", 0), b_zeros(b, 32);)
BUILD(text_28_align_2_30, g_head(b, 3, 0, 1), g_key_u32(b, "general.alignment", 1u << 30), b_zeros(b, 32);)
BUILD(g_align_24, g_head(b, 3, 0, 1), g_key_u32(b, "general.alignment", 24), b_zeros(b, 32);)
BUILD(g_align_4, g_head(b, 3, 0, 1), g_key_u32(b, "general.alignment", 4), b_zeros(b, 32);)
BUILD(g_align_string, g_head(b, 3, 0, 1), g_key_str(b, "general.alignment", "32"), b_zeros(b, 32);)
BUILD(g_align_array, g_head(b, 3, 0, 1), g_key_array(b, "general.alignment", 4, 1), b_u32(b, 32), b_zeros(b, 32);)
BUILD(g_align_negative, g_head(b, 3, 0, 1), g_key(b, "general.alignment", 5), b_u32(b, (uint32_t)-32), b_zeros(b, 32);)
BUILD(g_split_alone, g_head(b, 3, 0, 2), g_key_u32(b, "split.no", 1), g_key_u32(b, "split.count", 3);)
BUILD(g_split_text, g_head(b, 3, 0, 1), g_key_str(b, "split.count", "3");)

/* ---- GGUF: tensors ---- */
BUILD(g_dims_0, g_head(b, 3, 1, 0), g_tensor(b, "t", 0, NULL, 0, 0), b_zeros(b, 64);)
BUILD(g_dims_5, T1(b, DIMS(1, 1, 1, 1, 1), 0, 0);)
BUILD(text_29_dims_9, T1(b, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1), 0, 0);)
BUILD(g_dims_huge, g_head(b, 3, 1, 0), b_str(b, "t"), b_u32(b, 0xffffffff), b_zeros(b, 64);)
BUILD(text_26_dim_zero, T1(b, DIMS(0), 0, 0);)
BUILD(g_dim_zero_outer, T1(b, DIMS(4, 0), 0, 0);)
BUILD(g_dim_negative, T1(b, DIMS((uint64_t)-4), 0, 0);)
BUILD(text_25_dims_overflow, T1(b, DIMS((1ull << 42) + 1, (1ull << 22) + 1), 0, 0);)
BUILD(g_dims_to_zero, T1(b, DIMS(1ull << 32, 1ull << 32), 0, 0);)
BUILD(g_bytes_overflow, T1(b, DIMS(1ull << 62), 0, 0);)
BUILD(g_q4_0_wraps, T1(b, DIMS(5124095576030431008ull), 2, 0);)
BUILD(g_row_not_blocks, T1(b, DIMS(33), 2, 0);)
BUILD(g_row_not_super_blocks, T1(b, DIMS(128, 2), 12, 0);)
BUILD(g_offset_past_end, T1(b, DIMS(4), 0, 1 << 20);)
BUILD(g_offset_huge, T1(b, DIMS(4), 0, UINT64_MAX - 31);)
BUILD(g_offset_unaligned, T1(b, DIMS(4), 0, 4);)
BUILD(g_data_past_end, T1(b, DIMS(1000), 0, 0);)
BUILD(g_data_just_past_end, T1(b, DIMS(17), 0, 0);)
BUILD(g_unknown_type_past_end, T1(b, DIMS(4), 77, 1 << 20);)
BUILD(g_overlap, g_head(b, 3, 2, 0), g_tensor(b, "first", DIMS(16), 0, 0), g_tensor(b, "second", DIMS(8), 0, 32), b_pad(b, 32), b_zeros(b, 64);)
BUILD(g_same_offset, g_head(b, 3, 2, 0), g_tensor(b, "first", DIMS(8), 0, 0), g_tensor(b, "second", DIMS(8), 0, 0), b_pad(b, 32), b_zeros(b, 64);)
BUILD(g_tensor_twice, g_head(b, 3, 2, 0), g_tensor(b, "same", DIMS(8), 0, 0), g_tensor(b, "same", DIMS(8), 0, 32), b_pad(b, 32), b_zeros(b, 64);)
BUILD(g_tensor_name_long, g_head(b, 3, 1, 0), g_tensor(b, "a234567890123456789012345678901234567890123456789012345678901234", DIMS(8), 0, 0), b_pad(b, 32), b_zeros(b, 64);)
BUILD(g_tensor_name_bad, g_head(b, 3, 1, 0), g_tensor(b, "t\xc0\x80", DIMS(8), 0, 0), b_pad(b, 32), b_zeros(b, 64);)
BUILD(g_no_data, g_head(b, 3, 1, 0), g_tensor(b, "tensor_1", DIMS(8), 0, 0);)

/* ---- GGUF: the vocabulary's keys ---- */
#define VOCAB(b, keys) g_head(b, 3, 0, keys), g_key_array(b, "tokenizer.ggml.tokens", 8, 2), b_str(b, "a"), b_str(b, "b")
BUILD(g_bos_range, VOCAB(b, 2), g_key_u32(b, "tokenizer.ggml.bos_token_id", 2);)
BUILD(g_eos_range, VOCAB(b, 2), g_key_u32(b, "tokenizer.ggml.eos_token_id", 0xffffffff);)
BUILD(g_pad_negative, VOCAB(b, 2), g_key(b, "tokenizer.ggml.padding_token_id", 5), b_u32(b, (uint32_t)-1);)
BUILD(g_bos_string, VOCAB(b, 2), g_key_str(b, "tokenizer.ggml.bos_token_id", "a");)
BUILD(g_tokens_numbers, g_head(b, 3, 0, 1), g_key_array(b, "tokenizer.ggml.tokens", 4, 1), b_u32(b, 1), b_zeros(b, 8);)
BUILD(g_tokens_scalar, g_head(b, 3, 0, 1), g_key_u32(b, "tokenizer.ggml.tokens", 1);)
BUILD(g_scores_short, VOCAB(b, 2), g_key_array(b, "tokenizer.ggml.scores", 6, 1), b_u32(b, 0);)
BUILD(g_types_strings, VOCAB(b, 2), g_key_array(b, "tokenizer.ggml.token_type", 8, 2), b_str(b, "a"), b_str(b, "b");)
BUILD(g_merges_numbers, VOCAB(b, 2), g_key_array(b, "tokenizer.ggml.merges", 4, 1), b_u32(b, 0);)

#define G(fn, want) {#fn, want, fn}
static const hostile gguf[] = {
    G(g_empty, "neither GGUF nor safetensors"), G(g_magic_only, "the version needs 4 bytes at offset 4"), G(g_wrong_magic, "begins 47 47 55 45"),
    G(g_version_1, "version 1"), G(g_version_4, "version 4"), G(g_big_endian, "big-endian"),
    G(g_huge_tensors, "claims 18446744073709551615 tensors"), G(g_huge_keys, "claims 1152921504606846976 keys"),
    G(g_wrapping_counts, "keys, but only"), G(g_more_tensors_than_room, "claims 3 tensors"),
    G(g_key_empty_name, "the name of key 0 is 0 bytes long"), G(g_key_name_past_end, "the name of key 0 needs 5000 bytes"),
    G(g_key_name_huge, "the name of key 0 is 18446744073709551612 bytes long"), G(g_key_name_not_utf8, "not valid UTF-8"),
    G(g_key_name_nul, "control character"), G(g_key_name_escape, "control character"), G(g_key_type_13, "key a is of type 13"),
    G(g_key_type_huge, "key a is of type 4294967295"), G(g_key_twice, "the key a.b appears twice"),
    G(g_string_past_end, "the value of key a needs 100 bytes"), G(text_28_string_of_gib, "needs 3221225472 bytes"),
    G(g_string_wraps, "needs 18446744073709551615 bytes"), G(g_bool_of_two, "bool of value 2"),
    G(g_array_of_arrays, "key nested.key is an array of arrays"), G(g_array_type, "array of type 77"),
    G(g_array_huge, "claims 4611686018427387904 elements"), G(g_array_wraps, "claims 4611686018427387905 elements"),
    G(g_array_strings_huge, "claims 2305843009213693952 elements of type string"), G(g_array_string_past_end, "needs 99 bytes"),
    G(g_array_bool_of_nine, "bool of value 9"), G(text_29_align_0, "general.alignment is 0"), G(text_28_align_2_30, "general.alignment is 1073741824"),
    G(g_align_24, "general.alignment is 24"), G(g_align_4, "general.alignment is 4"), G(g_align_string, "general.alignment is of type string"),
    G(g_align_array, "general.alignment is of type array"), G(g_align_negative, "general.alignment is -32"),
    G(g_split_alone, "part 2 of 3"), G(g_split_text, "split.count is of type string"), G(g_dims_0, "tensor t has 0 dimensions"),
    G(g_dims_5, "has 5 dimensions"), G(text_29_dims_9, "has 9 dimensions"), G(g_dims_huge, "has 4294967295 dimensions"),
    G(text_26_dim_zero, "dimension 0 of tensor t is 0"), G(g_dim_zero_outer, "dimension 1 of tensor t is 0"),
    G(g_dim_negative, "dimension 0 of tensor t is -4"), G(text_25_dims_overflow, "tensor t multiply to more than 2^63"),
    G(g_dims_to_zero, "tensor t multiply to more than 2^63"), G(g_bytes_overflow, "more than 2^63 bytes"),
    G(g_q4_0_wraps, "but the whole file has"), G(g_row_not_blocks, "rows of 33 elements, but Q4_0 comes in blocks of 32"),
    G(g_row_not_super_blocks, "rows of 128 elements, but Q4_K"), G(g_offset_past_end, "at offset 1048576"),
    G(g_offset_huge, "at offset 18446744073709551584"), G(g_offset_unaligned, "not a multiple of the alignment 32"),
    G(g_data_past_end, "tensor t covers 4000 bytes"), G(g_data_just_past_end, "but the file ends at"),
    G(g_unknown_type_past_end, "at offset 1048576"), G(g_overlap, "tensors first and second overlap"),
    G(g_same_offset, "overlap"), G(g_tensor_twice, "the tensor same appears twice"), G(g_tensor_name_long, "is 64 bytes long; 1 to 63"),
    G(g_tensor_name_bad, "the name of tensor 0 is not valid UTF-8"), G(g_no_data, "tensor tensor_1"),
    G(g_bos_range, "bos_token_id is 2, but there are only 2 tokens"), G(g_eos_range, "eos_token_id is 4294967295"),
    G(g_pad_negative, "padding_token_id is of type integer or negative"), G(g_bos_string, "bos_token_id is of type string"),
    G(g_tokens_numbers, "tokenizer.ggml.tokens is an array of type unsigned integer"), G(g_tokens_scalar, "tokenizer.ggml.tokens is of type unsigned integer"),
    G(g_scores_short, "scores has 1 elements, but tokenizer.ggml.tokens has 2"), G(g_types_strings, "token_type is an array of type string"),
    G(g_merges_numbers, "merges is an array of type unsigned integer"),
};

/* ---- safetensors ---- */
typedef struct hostile_text { const char *name, *header; size_t data; const char *want; } hostile_text;

#define F(shape, from, to) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
static const hostile_text texts[] = {
    {"not_json", "{\"a\":", 0, "the text ends"},
    {"array", "[1]", 0, "'{' was expected"},
    {"behind", "{}x", 0, "text behind the document"},
    {"trailing_comma", "{\"a\":" F("[1]", "0", "4") ",}", 4, "a string was expected"},
    {"no_dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a has no dtype"},
    {"no_shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a has no shape"},
    {"no_offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a has no data_offsets"},
    {"dtype_twice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "says dtype twice"},
    {"tensor_twice", "{\"a\":" F("[1]", "0", "4") ",\"a\":" F("[1]", "4", "8") "}", 8, "the tensor a appears twice"},
    {"tensor_twice_escaped", "{\"a\":" F("[1]", "0", "4") ",\"\\u0061\":" F("[1]", "4", "8") "}", 8, "the tensor a appears twice"},
    {"meta_twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice"},
    {"meta_number", "{\"__metadata__\":{\"k\":1}}", 0, "k in __metadata__ is not a string"},
    {"meta_key_twice", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "the key k appears twice"},
    {"value_number", "{\"a\":1}", 0, "an object was expected"},
    {"shape_text", "{\"a\":" F("\"1\"", "0", "4") "}", 4, "an array was expected"},
    {"shape_negative", "{\"a\":" F("[-1]", "0", "4") "}", 4, "a digit was expected"},
    {"shape_fraction", "{\"a\":" F("[1.5]", "0", "4") "}", 4, "a whole number was expected"},
    {"shape_zero", "{\"a\":" F("[0]", "0", "0") "}", 0, "tensor a has a dimension of 0"},
    {"shape_overflow", "{\"a\":" F("[4294967296,4294967296]", "0", "4") "}", 4, "multiply to more than 2^63"},
    {"shape_2_64", "{\"a\":" F("[18446744073709551616]", "0", "4") "}", 4, "above 2^64"},
    {"bytes_overflow", "{\"a\":" F("[4611686018427387905]", "0", "4") "}", 4, "data_offsets give it 4 bytes"},
    {"span_short", "{\"a\":" F("[2]", "0", "4") "}", 4, "2 elements of type F32, but data_offsets give it 4 bytes"},
    {"span_long", "{\"a\":" F("[1]", "0", "8") "}", 8, "data_offsets give it 8 bytes"},
    {"reversed", "{\"a\":" F("[1]", "8", "4") "}", 8, "covers bytes 8 to 4"},
    {"past_end", "{\"a\":" F("[2]", "0", "8") "}", 4, "covers bytes 0 to 8 of 4"},
    {"far_past_end", "{\"a\":" F("[1]", "18446744073709551611", "18446744073709551615") "}", 4, "of 4 bytes of data"},
    {"three_offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, "not a pair"},
    {"one_offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 8, "not a pair"},
    {"overlap", "{\"a\":" F("[2]", "0", "8") ",\"b\":" F("[2]", "4", "12") "}", 12, "tensors a and b overlap"},
    {"hole", "{\"a\":" F("[1]", "0", "4") ",\"b\":" F("[1]", "8", "12") "}", 12, "bytes 4 to 8 of the data belong to no tensor"},
    {"hole_first", "{\"a\":" F("[1]", "4", "8") "}", 8, "bytes 0 to 4"},
    {"tail", "{\"a\":" F("[1]", "0", "4") "}", 8, "end at byte 4 of the data, but there are 8"},
    {"data_without_tensors", "{}", 8, "end at byte 0 of the data"},
    {"dtype_number", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "a string was expected"},
    {"dtype_escape", "{\"a\":{\"dtype\":\"\\u001b[2J\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a short name"},
    {"name_empty", "{\"\":" F("[1]", "0", "4") "}", 4, "name is empty"},
    {"name_nul", "{\"a\\u0000b\":" F("[1]", "0", "4") "}", 4, "control character"},
    {"name_surrogate", "{\"\\ud800\":" F("[1]", "0", "4") "}", 4, "surrogate"},
    {"name_bad_utf8", "{\"\xff\":" F("[1]", "0", "4") "}", 4, "not valid UTF-8"},
};

/* ---- the runs ---- */

static void refuse(const char *file, const char *label, const char *want, size_t size)
{
    lt_ctx *ctx;
    lt_err err = {0};
    lt_modelfile *f = NULL;
    uint64_t best = UINT64_MAX;

    assert_int_equal(lt_ctx_create(NULL, &ctx, &err), LT_OK);
    for (int i = 0; i < 3; i++) { /* the best of three: others use the machine too */
        uint64_t t = lt__now_ns();
        lt_status s = lt_modelfile_open(ctx, file, &f, &err);
        t = lt__now_ns() - t;
        if (t < best) best = t;
        if (s == LT_OK) fail_msg("%s was accepted", label);
        if (s != LT_E_FORMAT) fail_msg("%s: %s (%s)", label, lt_status_name(s), err.text);
        if (want && !strstr(err.text, want)) fail_msg("%s: \"%s\" does not say \"%s\"", label, err.text, want);
        assert_null(f);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    }
    if (best > LIMIT_NS) fail_msg("%s took %llu ns", label, (unsigned long long)best);
    if (lt_ctx_host_peak_bytes(ctx) > size + LIMIT_BYTES) fail_msg("%s took %llu bytes", label, (unsigned long long)lt_ctx_host_peak_bytes(ctx));
    lt_ctx_destroy(ctx);
}

static void hostile_gguf(void **state)
{
    static buf b;
    (void)state;
    for (size_t i = 0; i < sizeof gguf / sizeof *gguf; i++) {
        b.n = 0;
        gguf[i].build(&b);
        save("x.gguf", b.v, b.n);
        refuse(test_path("x.gguf"), gguf[i].name, gguf[i].want, b.n);
    }
    print_message("%zu malformed GGUF files refused\n", sizeof gguf / sizeof *gguf);
}

static void hostile_safetensors(void **state)
{
    static buf b;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        b.n = 0;
        s_file(&b, texts[i].header, texts[i].data);
        save("x.safetensors", b.v, b.n);
        refuse(test_path("x.safetensors"), texts[i].name, texts[i].want, b.n);
    }
    static const uint64_t lengths[] = {0, 1, 33, 100000001, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        b.n = 0;
        b_u64(&b, lengths[i]), b_text(&b, "{}"), b_zeros(&b, 30);
        save("x.safetensors", b.v, b.n);
        refuse(test_path("x.safetensors"), "length", "the header claims", b.n);
    }
    print_message("%zu malformed safetensors files refused\n", sizeof texts / sizeof *texts + sizeof lengths / sizeof *lengths);
}

/* Sixty thousand brackets: neither the stack nor the heap follows. */
static void deep_nesting_is_bounded(void **state)
{
    static buf b;
    (void)state;
    for (const char *c = "[{"; *c; c++) {
        b.n = 0;
        b_u64(&b, 60008), b_text(&b, "{\"a\":{\"");
        b_text(&b, "x\":");
        while (b.n < 8 + 60008) b_text(&b, *c == '[' ? "[" : "{\"\":"), b.n = b.n > 60016 ? 60016 : b.n;
        save("deep.safetensors", b.v, b.n);
        refuse(test_path("deep.safetensors"), "deep", "nested deeper than 64", b.n);
    }
}

static size_t small_gguf(buf *b)
{
    b->n = 0;
    g_head(b, 3, 2, 6);
    g_key_str(b, "general.architecture", "llama");
    g_key_u32(b, "general.alignment", 32);
    g_key_array(b, "tokenizer.ggml.tokens", 8, 2), b_str(b, "a"), b_str(b, "bc");
    g_key_array(b, "tokenizer.ggml.scores", 6, 2), b_u32(b, 0), b_u32(b, 0);
    g_key_array(b, "flags", 7, 2), b_u8(b, 0), b_u8(b, 1);
    g_key_u32(b, "tokenizer.ggml.bos_token_id", 1);
    g_tensor(b, "a", DIMS(8), 0, 0), g_tensor(b, "b", DIMS(32, 2), 2, 32), b_pad(b, 32);
    b_zeros(b, 32 + 36);
    return b->n;
}

static void accept(const char *file)
{
    lt_ctx *ctx;
    lt_err err = {0};
    lt_modelfile *f;
    assert_int_equal(lt_ctx_create(NULL, &ctx, &err), LT_OK);
    if (lt_modelfile_open(ctx, file, &f, &err) != LT_OK) fail_msg("%s", err.text);
    lt_modelfile_close(f);
    lt_ctx_destroy(ctx);
}

static void truncated_at_every_byte(void **state)
{
    static buf b;
    static const char *const header = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" F("[2]", "0", "8") ",\"b\":" F("[1]", "8", "12") "}";
    size_t n = small_gguf(&b);
    (void)state;

    save("t.gguf", b.v, n);
    accept(test_path("t.gguf"));
    for (size_t i = 0; i < n; i++) {
        save("t.gguf", b.v, i);
        refuse(test_path("t.gguf"), "truncated GGUF", NULL, i);
    }
    b.n = 0;
    s_file(&b, header, 12);
    save("t.safetensors", b.v, b.n);
    accept(test_path("t.safetensors"));
    for (size_t i = 0; i < b.n; i++) {
        save("t.safetensors", b.v, i);
        refuse(test_path("t.safetensors"), "truncated safetensors", NULL, i);
    }
    print_message("%zu truncations refused\n", n + b.n);
}

/* Any byte set to 0, 1, 127, 128, 255: opened or refused, never worse, and nothing held afterwards. */
static void any_byte_changed(void **state)
{
    static buf b;
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    size_t n = small_gguf(&b), opened = 0;
    lt_ctx *ctx;
    (void)state;

    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof values; k++) {
            uint8_t was = b.v[i];
            lt_modelfile *f = NULL;
            lt_err err = {0};
            b.v[i] = values[k];
            save("m.gguf", b.v, n);
            lt_status s = lt_modelfile_open(ctx, test_path("m.gguf"), &f, &err);
            assert_true(s == LT_OK || (s == LT_E_FORMAT && err.text[0]));
            opened += s == LT_OK;
            lt_modelfile_close(f);
            assert_int_equal(lt_ctx_host_bytes(ctx), 0);
            b.v[i] = was;
        }
    assert_true(opened > 0 && opened < n * sizeof values);
    assert_true(lt_ctx_host_peak_bytes(ctx) < LIMIT_BYTES);
    lt_ctx_destroy(ctx);
}

/* A 10 MB file whose one array would take 80 MB as numbers, wrong only behind it. */
static void nothing_is_built_before_all_is_checked(void **state)
{
    static buf b;
    size_t n = 10 << 20;
    uint8_t *big = calloc(1, n);
    (void)state;

    assert_non_null(big);
    b.n = 0;
    g_head(&b, 3, 1, 1), g_key_array(&b, "numbers", 0, n - 200);
    memcpy(big, b.v, b.n);
    size_t at = b.n + n - 200;
    b.n = 0;
    g_tensor(&b, "zero", DIMS(0), 0, 0);
    memcpy(big + at, b.v, b.n);
    save("big.gguf", big, n);
    free(big);
    refuse(test_path("big.gguf"), "big", "dimension 0 of tensor zero is 0", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_gguf),           cmocka_unit_test(hostile_safetensors),
        cmocka_unit_test(deep_nesting_is_bounded), cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(any_byte_changed),       cmocka_unit_test(nothing_is_built_before_all_is_checked),
    };
    return cmocka_run_group_tests_name("hostile files", tests, make_dir, drop_dir);
}
