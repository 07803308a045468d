/* Opening model files while the Nth allocation or read fails, once or from then on: a typed error, nothing held, and the
 * next open in the same context right. */
#include "format/gguf_write.h"
#include "hf_common.h"

typedef struct plan { lt_fault_point point; uint64_t at, seen; bool forever; } plan;

static bool hook(void *user, lt_fault_point point)
{
    plan *p = user;
    if (point != p->point) return false;
    uint64_t n = p->seen++;
    return p->forever ? n >= p->at : n == p->at;
}

static uint64_t sweep(const char *path, lt_fault_point point, lt_status want, bool forever)
{
    plan p = {.point = point, .at = UINT64_MAX, .forever = forever};
    lt_ctx_desc d = lt_ctx_desc_default();
    lt_ctx *ctx;
    lt_modelfile *f = NULL;
    lt_err err = {0};
    uint64_t total, tensors, keys;

    d.fault = hook;
    d.fault_user = &p;
    assert_int_equal(lt_ctx_create(&d, &ctx, &err), LT_OK);
    if (lt_modelfile_open(ctx, path, &f, &err) != LT_OK) fail_msg("%s", err.text);
    total = p.seen;
    tensors = lt_modelfile_tensor_count(f);
    keys = lt_modelfile_key_count(f);
    lt_modelfile_close(f);
    assert_true(total > 0);
    for (uint64_t n = 0; n < total; n++) {
        p.at = n;
        p.seen = 0;
        f = NULL;
        memset(&err, 0, sizeof err);
        lt_status s = lt_modelfile_open(ctx, path, &f, &err);
        if (s != want || err.status != want || !err.text[0]) fail_msg("%s, fault %d at %d: %s, \"%s\"", path, (int)point, (int)n, lt_status_name(s), err.text);
        assert_null(f);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    }
    p.at = UINT64_MAX;
    assert_int_equal(lt_modelfile_open(ctx, path, &f, &err), LT_OK);
    assert_int_equal(lt_modelfile_tensor_count(f), tensors);
    assert_int_equal(lt_modelfile_key_count(f), keys);
    lt_modelfile_close(f);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
    return total;
}

static void sweep_all(const char *path)
{
    uint64_t allocs = 0, reads = 0;
    for (int forever = 0; forever < 2; forever++) {
        allocs = sweep(path, LT_FAULT_HOST_ALLOC, LT_E_HOST_OOM, forever);
        reads = sweep(path, LT_FAULT_READ, LT_E_IO, forever);
    }
    print_message("%s: %d allocations and %d reads failed, once and for good\n", path, (int)allocs, (int)reads);
}

static void write_gguf(lt_ctx *ctx, const char *name, int part, int parts)
{
    static const uint8_t zeros[256];
    const char *tokens[] = {"a", "b"};
    char tensor[16];
    lt_err err;
    lt__gguf_writer *w;
    assert_int_equal(lt__gguf_writer_create(ctx, test_path(name), 64, &w, &err), LT_OK);
    if (part == 0) lt__gguf_put_str(w, "general.architecture", "llama"), lt__gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, 2);
    if (parts > 1) lt__gguf_put_u16(w, "split.no", (uint16_t)part), lt__gguf_put_u16(w, "split.count", (uint16_t)parts);
    for (int i = 0; i < 2; i++) {
        snprintf(tensor, sizeof tensor, "t%d.%d", part, i);
        lt__gguf_put_tensor(w, tensor, LT_DTYPE_F32, 2, (uint64_t[]){4, 8});
    }
    assert_int_equal(lt__gguf_write(w, zeros, 256, &err), LT_OK);
    assert_int_equal(lt__gguf_writer_commit(w, &err), LT_OK);
}

static void gguf(void **state)
{
    lt_ctx *ctx;
    (void)state;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    write_gguf(ctx, "one.gguf", 0, 1);
    write_gguf(ctx, "s-00001-of-00002.gguf", 0, 2);
    write_gguf(ctx, "s-00002-of-00002.gguf", 1, 2);
    lt_ctx_destroy(ctx);
    sweep_all(test_path("one.gguf"));
    sweep_all(test_path("s-00002-of-00002.gguf"));
}

static void safetensors(void **state)
{
    (void)state;
    make_hf_folder("hf");
    sweep_all(test_path("hf/s1.safetensors"));
    sweep_all(test_path("hf"));
}

/* A refusal that meets a fault on its way, and the writer under failing writes: no file appears. */
static void writer(void **state)
{
    plan p = {.point = LT_FAULT_HOST_ALLOC, .at = UINT64_MAX};
    lt_ctx_desc d = lt_ctx_desc_default();
    static const uint8_t zeros[64];
    lt_ctx *ctx;
    lt_err err;
    (void)state;

    d.fault = hook;
    d.fault_user = &p;
    assert_int_equal(lt_ctx_create(&d, &ctx, &err), LT_OK);
    for (int kind = 0; kind < 2; kind++) {
        p.point = kind ? LT_FAULT_WRITE : LT_FAULT_HOST_ALLOC;
        for (p.at = 0;; p.at++) {
            lt__gguf_writer *w = NULL;
            p.seen = 0;
            lt_status s = lt__gguf_writer_create(ctx, test_path("w.gguf"), 64, &w, &err);
            if (s == LT_OK) {
                lt__gguf_put_str(w, "general.architecture", "llama");
                lt__gguf_put_tensor(w, "t", LT_DTYPE_F32, 1, (uint64_t[]){16});
                s = lt__gguf_write(w, zeros, 64, &err);
                if (s == LT_OK) s = lt__gguf_writer_commit(w, &err);
                else lt__gguf_writer_abandon(w);
            }
            assert_int_equal(lt_ctx_host_bytes(ctx), 0);
            if (p.seen <= p.at) {
                assert_int_equal(s, LT_OK);
                break;
            }
            assert_int_equal(s, kind ? LT_E_IO : LT_E_HOST_OOM);
            assert_int_equal(access(test_path("w.gguf"), F_OK), -1);
        }
        assert_true(p.at > 2);
        unlink(test_path("w.gguf"));
    }
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf), cmocka_unit_test(safetensors), cmocka_unit_test(writer)};
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
