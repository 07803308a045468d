#include "format/gguf_write.h"
#include "format_common.h"

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

static lt__gguf_writer *writer(const char *name, uint32_t align)
{
    lt__gguf_writer *w;
    assert_int_equal(lt__gguf_writer_create(ctx, test_path(name), align, &w, &err), LT_OK);
    return w;
}

static void commit(lt__gguf_writer *w, uint64_t data)
{
    static const uint8_t zeros[1 << 16];
    assert_int_equal(lt__gguf_write(w, zeros, data, &err), LT_OK);
    if (lt__gguf_writer_commit(w, &err) != LT_OK) fail_msg("%s", err.text);
}

static void keys_come_back(void **state)
{
    const char *strs[] = {"a", "", "\xe2\x96\x81lo"};
    float f32s[] = {0.5f, -2};
    int32_t i32s[] = {-7, 8, 9};
    lt__gguf_writer *w = writer("keys.gguf", 32);
    uint64_t u;
    double d;
    (void)state;

    lt__gguf_put_str(w, "general.architecture", "llama");
    lt__gguf_put_u16(w, "u16", 65535);
    lt__gguf_put_u32(w, "u32", 4000000000u);
    lt__gguf_put_i32(w, "i32", -5);
    lt__gguf_put_u64(w, "u64", UINT64_MAX);
    lt__gguf_put_f32(w, "f32", 1.5f);
    lt__gguf_put_bool(w, "yes", true);
    lt__gguf_put_strs(w, "strs", strs, 3);
    lt__gguf_put_f32s(w, "f32s", f32s, 2);
    lt__gguf_put_i32s(w, "i32s", i32s, 3);
    commit(w, 0);
    lt_modelfile *f = open_ok(test_path("keys.gguf"));
    assert_string_equal(lt_modelfile_format(f), "gguf 3");
    assert_int_equal(lt_modelfile_key_count(f), 10);
    assert_int_equal(lt_modelfile_tensor_count(f), 0);
    assert_string_equal(lt_modelfile_str(f, "general.architecture", "?"), "llama");
    assert_string_equal(lt_modelfile_str(f, "u32", "?"), "?");
    assert_true(lt_modelfile_u64(f, "u16", &u) && u == 65535);
    assert_true(lt_modelfile_u64(f, "u32", &u) && u == 4000000000u);
    assert_true(lt_modelfile_u64(f, "u64", &u) && u == UINT64_MAX);
    assert_false(lt_modelfile_u64(f, "i32", &u)); /* negative */
    assert_false(lt_modelfile_u64(f, "f32", &u));
    assert_false(lt_modelfile_u64(f, "absent", &u));
    assert_true(lt_modelfile_f64(f, "f32", &d) && d == 1.5);
    assert_true(lt_modelfile_f64(f, "i32", &d) && d == -5);
    assert_true(lt_modelfile_bool(f, "yes", false));
    assert_true(lt_modelfile_bool(f, "u32", true)); /* another type: the default */
    const lt_key *k = lt_modelfile_key(f, "strs");
    assert_true(k && k->type == LT_KEY_ARRAY && k->elem_type == LT_KEY_STRING && k->n == 3);
    for (int i = 0; i < 3; i++) assert_true(k->s_len[i] == strlen(strs[i]) && strcmp(k->v.s[i], strs[i]) == 0);
    k = lt_modelfile_key(f, "f32s");
    assert_true(k && k->elem_type == LT_KEY_FLOAT && k->n == 2 && k->v.f[0] == 0.5 && k->v.f[1] == -2);
    k = lt_modelfile_key(f, "i32s");
    assert_true(k && k->elem_type == LT_KEY_INT && k->n == 3 && k->v.i[0] == -7 && k->v.i[2] == 9);
    assert_ptr_equal(lt_modelfile_key_at(f, 8), lt_modelfile_key(f, "f32s"));
    assert_null(lt_modelfile_key_at(f, 10));
    lt_modelfile_close(f);
}

/* Every value type of the format, written by hand: the writer above has not all of them. */
static void all_value_types(void **state)
{
    static buf b;
    double d = -0.25;
    b.n = 0;
    g_head(&b, 2, 0, 8);
    g_key(&b, "u8", 0), b_u8(&b, 200);
    g_key(&b, "i8", 1), b_u8(&b, 0x80);
    g_key(&b, "i16", 3), b_raw(&b, "\xff\x7f", 2);
    g_key(&b, "i64", 11), b_u64(&b, 1ull << 63);
    g_key(&b, "f64", 12), b_raw(&b, &d, 8);
    g_key(&b, "nul", 8), b_u64(&b, 3), b_raw(&b, "a\0b", 3);
    g_key_array(&b, "bools", 7, 3), b_raw(&b, "\1\0\1", 3);
    g_key_array(&b, "u16s", 2, 2), b_raw(&b, "\1\0\2\1", 4);
    save("types.gguf", b.v, b.n);
    lt_modelfile *f = open_ok(test_path("types.gguf"));
    (void)state;
    assert_string_equal(lt_modelfile_format(f), "gguf 2");
    assert_true(lt_modelfile_key(f, "u8")->v.u[0] == 200);
    assert_true(lt_modelfile_key(f, "i8")->v.i[0] == -128);
    assert_true(lt_modelfile_key(f, "i16")->v.i[0] == 32767);
    assert_true(lt_modelfile_key(f, "i64")->v.i[0] == INT64_MIN);
    assert_true(lt_modelfile_key(f, "f64")->v.f[0] == -0.25);
    assert_true(lt_modelfile_key(f, "nul")->s_len[0] == 3 && memcmp(lt_modelfile_key(f, "nul")->v.s[0], "a\0b", 4) == 0);
    assert_true(lt_modelfile_key(f, "bools")->v.b[0] && !lt_modelfile_key(f, "bools")->v.b[1] && lt_modelfile_key(f, "bools")->v.b[2]);
    assert_true(lt_modelfile_key(f, "u16s")->v.u[1] == 0x102);
    lt_modelfile_close(f);
}

static void every_dtype_and_alignment(void **state)
{
    (void)state;
    for (uint32_t align = 8; align <= 1024 * 1024; align *= 8) {
        lt__gguf_writer *w = writer("dtypes.gguf", align);
        uint64_t total = 0, at = 0, dim[2] = {3, 512};
        char name[32];
        for (int t = 0; t < LT_DTYPE_COUNT; t++) {
            if (lt_dtype_get((lt_dtype)t)->gguf_id < 0) continue;
            uint64_t row;
            lt__gguf_put_tensor(w, lt_dtype_get((lt_dtype)t)->name, (lt_dtype)t, 2, dim);
            assert_true(lt_dtype_row_bytes((lt_dtype)t, 512, &row));
            total += 3 * row;
        }
        commit(w, total);
        lt_modelfile *f = open_ok(test_path("dtypes.gguf"));
        for (int t = 0; t < LT_DTYPE_COUNT; t++) {
            const lt_dtype_traits *tr = lt_dtype_get((lt_dtype)t);
            if (tr->gguf_id < 0) continue;
            const lt_tensor_info *x = lt_modelfile_tensor(f, tr->name);
            snprintf(name, sizeof name, "%s", tr->name);
            assert_non_null(x);
            assert_true(x->dtype == (lt_dtype)t && x->ndim == 2 && x->dim[0] == 3 && x->dim[1] == 512 && x->add == 0.0f);
            assert_string_equal(x->type_name, name);
            assert_int_equal(x->bytes, 3 * 512 / tr->block_elems * tr->block_bytes);
            assert_int_equal(x->offset % align, 0);
            assert_true(x->offset >= at && x->offset + x->bytes <= lt_modelfile_part_bytes(f, 0));
            at = x->offset + x->bytes;
        }
        lt_modelfile_close(f);
    }
}

/* Types we do not read stay visible, with what lies before the next tensor as their size. Gaps are allowed. */
static void unknown_types_are_kept(void **state)
{
    static buf b;
    (void)state;
    b.n = 0;
    g_head(&b, 3, 3, 0);
    g_tensor(&b, "last", DIMS(8), 0, 128);
    g_tensor(&b, "iq", DIMS(256), 16, 0);
    g_tensor(&b, "odd", DIMS(7), 1234, 96);
    b_pad(&b, 32);
    size_t data = b.n;
    b_zeros(&b, 160);
    save("unknown.gguf", b.v, b.n);
    lt_modelfile *f = open_ok(test_path("unknown.gguf"));
    const lt_tensor_info *t = lt_modelfile_tensor(f, "iq");
    assert_true(t->dtype == LT_DTYPE_COUNT && t->bytes == 96 && t->offset == data);
    assert_string_equal(t->type_name, "IQ2_XXS");
    t = lt_modelfile_tensor(f, "odd");
    assert_true(t->dtype == LT_DTYPE_COUNT && t->bytes == 32);
    assert_string_equal(t->type_name, "type 1234");
    assert_string_equal(lt_modelfile_tensor_at(f, 0)->name, "last");
    assert_null(lt_modelfile_tensor_at(f, 3));
    assert_null(lt_modelfile_tensor(f, "absent"));
    lt_modelfile_close(f);
}

static void write_split(const char *name, uint16_t no, uint16_t count, int32_t tensors, const char *tensor)
{
    lt__gguf_writer *w = writer(name, 32);
    if (no == 0) lt__gguf_put_str(w, "general.architecture", "llama");
    lt__gguf_put_u16(w, "split.no", no);
    lt__gguf_put_u16(w, "split.count", count);
    lt__gguf_put_i32(w, "split.tensors.count", tensors);
    lt__gguf_put_tensor(w, tensor, LT_DTYPE_F32, 1, (uint64_t[]){16});
    commit(w, 64);
}

static void splits_open_from_any_part(void **state)
{
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    (void)state;
    for (uint16_t i = 0; i < 3; i++) write_split(names[i], i, 3, 3, (const char *[]){"a", "b", "c"}[i]);
    for (int i = 0; i < 3; i++) {
        lt_modelfile *f = open_ok(test_path(names[i]));
        assert_int_equal(lt_modelfile_parts(f), 3);
        assert_int_equal(lt_modelfile_tensor_count(f), 3);
        assert_int_equal(lt_modelfile_tensor(f, "c")->file, 2);
        assert_string_equal(lt_modelfile_part_path(f, 2), test_path(names[2]));
        assert_null(lt_modelfile_part_path(f, 3));
        assert_string_equal(lt_modelfile_str(f, "general.architecture", "?"), "llama");
        lt_modelfile_close(f);
    }
    write_split(names[1], 1, 3, 3, "a"); /* in part 1 already */
    open_fails(test_path(names[0]), LT_E_FORMAT, "the tensor a appears twice");
    write_split(names[1], 2, 3, 3, "b");
    open_fails(test_path(names[0]), LT_E_FORMAT, "split.no is 2; 1 was expected");
    write_split(names[1], 1, 4, 3, "b");
    open_fails(test_path(names[0]), LT_E_FORMAT, "split.count is 4, but the name says 3");
    write_split(names[1], 1, 3, 9, "b");
    open_fails(test_path(names[0]), LT_E_FORMAT, "split.tensors.count is 9, but the first part says 3");
    for (uint16_t i = 0; i < 3; i++) write_split(names[i], i, 3, 7, (const char *[]){"a", "b", "c"}[i]);
    open_fails(test_path(names[0]), LT_E_FORMAT, "split.tensors.count is 7, but the 3 parts hold 3 tensors");
    unlink(test_path(names[1]));
    open_fails(test_path(names[2]), LT_E_NOT_FOUND, "part 2 of 3 is missing");
    rename(test_path(names[0]), test_path("renamed.gguf"));
    open_fails(test_path("renamed.gguf"), LT_E_FORMAT, "part 1 of 3");
}

static void what_is_no_model(void **state)
{
    (void)state;
    open_fails(test_path("absent.gguf"), LT_E_NOT_FOUND, "absent.gguf");
    save("zip.bin", "PK\3\4aaaaaaaaaaaa", 16);
    open_fails(test_path("zip.bin"), LT_E_FORMAT, "zip archive");
    save("lfs.gguf", "version https://git-lfs.github.com/spec/v1\n", 43);
    open_fails(test_path("lfs.gguf"), LT_E_FORMAT, "Git LFS pointer");
    open_fails("/dev/null", LT_E_FORMAT, "not a regular file");
    assert_int_equal(mkdir(test_path("empty"), 0700), 0);
    open_fails(test_path("empty"), LT_E_NOT_FOUND, "folder without config.json");
    lt_modelfile_close(NULL);
}

static void the_writer_refuses_mistakes(void **state)
{
    lt__gguf_writer *w;
    (void)state;
    assert_int_equal(lt__gguf_writer_create(ctx, test_path("w.gguf"), 24, &w, &err), LT_E_INVALID);
    w = writer("w.gguf", 32);
    lt__gguf_put_tensor(w, "t", LT_DTYPE_Q4_K, 1, (uint64_t[]){100});
    assert_int_equal(lt__gguf_writer_commit(w, &err), LT_E_INVALID);
    w = writer("w.gguf", 32);
    lt__gguf_put_tensor(w, "t", LT_DTYPE_F32, 1, (uint64_t[]){4});
    assert_int_equal(lt__gguf_write(w, "12345678", 8, &err), LT_OK);
    assert_int_equal(lt__gguf_writer_commit(w, &err), LT_E_INVALID);
    assert_int_equal(access(test_path("w.gguf"), F_OK), -1); /* whole or not at all */
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
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
        cmocka_unit_test(keys_come_back),         cmocka_unit_test(all_value_types),           cmocka_unit_test(every_dtype_and_alignment),
        cmocka_unit_test(unknown_types_are_kept), cmocka_unit_test(splits_open_from_any_part), cmocka_unit_test(what_is_no_model),
        cmocka_unit_test(the_writer_refuses_mistakes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
