/* lt_op_check: a launch that breaks its op's contract is refused in one sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <math.h>
#include <string.h>

#include "graph/op.h"

static lt_view view(lt_dtype t, uint32_t ndim, int64_t d0, int64_t d1, int64_t d2)
{
    const lt_dtype_traits *traits = lt_dtype_get(t);
    lt_view v = {.dtype = t, .ndim = ndim, .dim = {d0, d1, d2}};
    int64_t bytes = traits->block_bytes;
    for (uint32_t i = ndim; i-- > 0;) {
        v.stride[i] = bytes;
        bytes *= i + 1 == ndim ? v.dim[i] / traits->block_elems : v.dim[i];
    }
    return v;
}

/* A valid launch of each op; addresses differ, as in life. */
static lt_op_args good(lt_op op)
{
    const lt_dtype f32 = LT_DTYPE_F32, i32 = LT_DTYPE_I32;
    lt_op_args a = {.op = op, .n_src = lt_op_get(op)->n_src, .name = "blk.3.x"};
    a.src[0] = a.dst = a.src[1] = view(f32, 2, 5, 64, 0);
    lt_kv_layout kv = {.page_bytes = 65536, .v_offset = 32768, .kv_heads = 2, .head_dim = 32, .dtype = LT_DTYPE_F16};
    switch (op) {
    case LT_OP_LINEAR:
        a.src[0] = view(LT_DTYPE_Q8A, 2, 5, 512, 0), a.src[1] = view(LT_DTYPE_Q4_K, 2, 64, 512, 0);
        break;
    case LT_OP_QUANTIZE:
        a.dst = view(LT_DTYPE_Q8A, 2, 5, 64, 0);
        break;
    case LT_OP_RMS_NORM:
        a.src[1] = view(f32, 1, 64, 0, 0), a.params.RMS_NORM.eps = 1e-5f;
        break;
    case LT_OP_ADD_ROW:
        a.src[1] = view(f32, 1, 64, 0, 0);
        break;
    case LT_OP_ROPE:
        a.src[0] = a.dst = view(f32, 3, 5, 4, 32), a.src[1] = view(f32, 3, 5, 8, 2);
        a.params.ROPE = (lt_rope_params){LT_ROPE_HALVES, 16};
        break;
    case LT_OP_KV_STORE:
        a.params.KV_STORE.kv = kv;
        a.src[0] = a.src[1] = view(f32, 3, 5, 2, 32);
        a.src[2] = view(i32, 1, 5, 0, 0), a.src[3] = view(i32, 1, 4, 0, 0), a.dst = view(LT_DTYPE_I8, 1, 4 * 65536, 0, 0);
        break;
    case LT_OP_ATTENTION:
        a.params.ATTENTION = (lt_attention_params){.kv = kv, .heads = 6, .scale = 1};
        a.src[0] = a.dst = view(f32, 3, 5, 6, 32), a.src[1] = view(LT_DTYPE_I8, 1, 4 * 65536, 0, 0);
        a.src[2] = view(i32, 1, 5, 0, 0), a.src[3] = view(i32, 1, 4, 0, 0), a.src[4] = view(f32, 1, 6, 0, 0);
        break;
    case LT_OP_SOFTCAP:
        a.params.SOFTCAP.cap = 30;
        break;
    case LT_OP_TAKE_ROWS:
        a.src[1] = view(i32, 1, 3, 0, 0), a.dst = view(f32, 2, 3, 64, 0);
        break;
    case LT_OP_TOP_K:
        a.params.TOP_K.k = 4, a.dst = view(i32, 2, 5, 4, 0);
        break;
    case LT_OP_TOP_SHARE:
        a.src[1] = view(i32, 2, 5, 4, 0), a.dst = view(f32, 2, 5, 4, 0);
        break;
    case LT_OP_EXPERT_LINEAR:
        a.params.EXPERT_LINEAR.first = 2;
        a.src[0] = view(LT_DTYPE_Q8A, 2, 5, 512, 0), a.src[1] = view(LT_DTYPE_Q4_K, 3, 3, 64, 512);
        a.src[2] = view(i32, 2, 5, 4, 0), a.dst = view(f32, 3, 5, 4, 64);
        break;
    case LT_OP_EXPERT_BIAS:
        a.src[0] = a.dst = view(f32, 3, 5, 4, 64), a.src[1] = view(f32, 2, 8, 64, 0), a.src[2] = view(i32, 2, 5, 4, 0);
        break;
    case LT_OP_EXPERT_SUM:
        a.src[0] = view(f32, 3, 5, 4, 64), a.src[1] = view(f32, 2, 5, 4, 0);
        break;
    case LT_OP_CLAMP_MUL:
        a.params.CLAMP_MUL = (lt_clamp_params){1.702f, 7};
        break;
    default:
        break;
    }
    for (uint32_t i = 0; i < a.n_src; i++)
        a.src[i].addr = 0x10000 * (i + 1);
    a.dst.addr = 0x100000;
    return a;
}

static void a_good_launch_of_each_op_passes(void **state)
{
    (void)state;
    for (int op = 0; op < LT_OP_COUNT; op++) {
        lt_op_args a = good((lt_op)op);
        lt_err err = {0};
        if (lt_op_check(&a, &err) != LT_OK)
            fail_msg("%s", err.text);
    }
    lt_op_args a = good(LT_OP_ADD);
    a.dst.addr = a.src[0].addr; /* in place */
    assert_int_equal(lt_op_check(&a, NULL), LT_OK);
    a = good(LT_OP_LINEAR);
    a.dst.stride[0] = 4096; /* a column window */
    assert_int_equal(lt_op_check(&a, NULL), LT_OK);
    a = good(LT_OP_RMS_NORM);
    a.params.RMS_NORM.eps = 1; /* the most that a file may say */
    assert_int_equal(lt_op_check(&a, NULL), LT_OK);
    assert_null(lt_op_get(LT_OP_COUNT));
}

static void refused(const lt_op_args *a, const char *text)
{
    lt_err err = {0};
    if (lt_op_check(a, &err) != LT_E_INVALID)
        fail_msg("accepted what should be refused with \"%s\"", text);
    if (!strstr(err.text, text))
        fail_msg("said \"%s\", not \"%s\"", err.text, text);
    if (a->name && (unsigned)a->op < LT_OP_COUNT && !strstr(err.text, "blk.3.x"))
        fail_msg("\"%s\" does not name the launch", err.text);
    assert_int_equal(lt_op_check(a, NULL), LT_E_INVALID);
}

/* One field of a good launch made wrong, then the sentence it must give. */
#define BREAK(op, change, text)                                              \
    do {                                                                     \
        lt_op_args a = good(op);                                             \
        change;                                                              \
        refused(&a, text);                                                   \
    } while (0)

static void views_are_checked(void **state)
{
    (void)state;
    BREAK(LT_OP_ADD, a.op = LT_OP_COUNT, "unknown op");
    BREAK(LT_OP_ADD, a.n_src = 1, "1 sources, expected 2");
    BREAK(LT_OP_ADD, a.src[1].dtype = LT_DTYPE_COUNT, "src1 has unknown dtype");
    BREAK(LT_OP_ADD, a.dst.ndim = 0, "dst has 0 dimensions");
    BREAK(LT_OP_ADD, a.dst.ndim = 5, "dst has 5 dimensions");
    BREAK(LT_OP_ADD, a.src[0].dim[0] = 0, "dimension 0 of src0 is 0");
    BREAK(LT_OP_ADD, a.src[0].dim[1] = -1, "dimension 1 of src0 is -1");
    BREAK(LT_OP_ADD, a.src[0].stride[1] = 8, "innermost stride of src0 is 8");
    BREAK(LT_OP_ADD, a.src[0].stride[0] = 252, "stride 0 of src0 is 252, expected 256");
    BREAK(LT_OP_ADD, a.src[0].stride[0] = -256, "stride 0 of src0");
    BREAK(LT_OP_ADD, (a.src[0].dim[0] = INT64_MAX / 16), "overflow");
    BREAK(LT_OP_ADD, (a.src[0].dim[1] = INT64_MAX), "src0");
    BREAK(LT_OP_LINEAR, a.src[1].dim[1] = 500, "not whole blocks of 256 (Q4_K)");
}

static void contracts_are_checked(void **state)
{
    (void)state;
    BREAK(LT_OP_LINEAR, a.src[0] = view(LT_DTYPE_F32, 2, 5, 512, 0), "src0 is F32, expected Q8A");
    BREAK(LT_OP_LINEAR, a.src[1] = view(LT_DTYPE_I8, 2, 64, 512, 0), "the weight is I8");
    BREAK(LT_OP_LINEAR, a.src[1] = view(LT_DTYPE_F16, 2, 64, 512, 0), "src0 is Q8A, expected F32");
    BREAK(LT_OP_LINEAR, a.src[1].dim[0] = 63, "dimension 1 of dst is 64, expected 63");
    BREAK(LT_OP_LINEAR, a.src[0].dim[0] = 4, "dimension 0 of dst is 5, expected 4");
    BREAK(LT_OP_QUANTIZE, a.dst = view(LT_DTYPE_F32, 2, 5, 64, 0), "dst is F32, expected Q8A");
    BREAK(LT_OP_RMS_NORM, a.src[1] = view(LT_DTYPE_F32, 1, 63, 0, 0), "dimension 0 of src1 is 63, expected 64");
    BREAK(LT_OP_RMS_NORM, a.params.RMS_NORM.eps = -1, "eps is -1");
    BREAK(LT_OP_ROPE, a.params.ROPE.rotated = 15, "15 rotated elements");
    BREAK(LT_OP_ROPE, a.params.ROPE.rotated = 34, "34 rotated elements");
    BREAK(LT_OP_ROPE, a.params.ROPE.rotated = 18, "dimension 1 of src1 is 8, expected 9");
    BREAK(LT_OP_ROPE, a.params.ROPE.style = (lt_rope_style)7, "unknown rope style 7");
    BREAK(LT_OP_ADD, a.dst.dim[1] = 32, "dimension 1 of dst is 32, expected 64");
    BREAK(LT_OP_ADD_ROW, a.src[1] = view(LT_DTYPE_F32, 2, 5, 64, 0), "src1 has 2 dimensions, expected 1");
    BREAK(LT_OP_SCALE, a.dst.dim[0] = 4, "dimension 0 of dst is 4, expected 5");
    BREAK(LT_OP_TAKE_ROWS, a.src[1].dtype = LT_DTYPE_F32, "src1 is F32, expected I32");
    BREAK(LT_OP_TAKE_ROWS, a.dst.dim[0] = 2, "dimension 0 of dst is 2, expected 3");
}

static void cache_layouts_are_checked(void **state)
{
    (void)state;
    BREAK(LT_OP_KV_STORE, a.params.KV_STORE.kv.dtype = LT_DTYPE_Q4_0, "the cache is Q4_0");
    BREAK(LT_OP_KV_STORE, a.params.KV_STORE.kv.kv_heads = 3, "dimension 1 of src0 is 2, expected 3");
    BREAK(LT_OP_KV_STORE, a.params.KV_STORE.kv.v_offset = 32767, "side by side");
    BREAK(LT_OP_KV_STORE, a.params.KV_STORE.kv.page_bytes = 65535, "side by side");
    BREAK(LT_OP_KV_STORE, a.params.KV_STORE.kv.k_offset = UINT64_MAX - 5, "overflow");
    BREAK(LT_OP_KV_STORE, a.dst.dim[0] = 65535, "less than one page");
    BREAK(LT_OP_KV_STORE, a.src[2].dim[0] = 4, "dimension 0 of src2 is 4, expected 5");
    BREAK(LT_OP_ATTENTION, a.params.ATTENTION.heads = 5, "dimension 1 of src0 is 6, expected 5");
    BREAK(LT_OP_ATTENTION, a.params.ATTENTION.kv.kv_heads = 4, "side by side");
    BREAK(LT_OP_ATTENTION, (a.params.ATTENTION.kv.kv_heads = 0), "0 kv heads");
    BREAK(LT_OP_ATTENTION, (a.src[0] = a.dst = view(LT_DTYPE_F32, 3, 5, 5, 32), a.params.ATTENTION.heads = 5),
          "5 heads, expected a multiple of the 2 kv heads");
    BREAK(LT_OP_ATTENTION, a.src[1].dtype = LT_DTYPE_F32, "src1");
}

static void caps_and_sinks_are_checked(void **state)
{
    (void)state;
    lt_op_args fine = good(LT_OP_ATTENTION);
    fine.params.ATTENTION.cap = 50;
    assert_int_equal(lt_op_check(&fine, NULL), LT_OK);
    fine.n_src = 4; /* sinks are optional */
    assert_int_equal(lt_op_check(&fine, NULL), LT_OK);
    BREAK(LT_OP_ATTENTION, a.n_src = 3, "3 sources, expected 4 or one more");
    BREAK(LT_OP_ATTENTION, a.n_src = 6, "6 sources, expected 4 or one more");
    BREAK(LT_OP_ATTENTION, a.src[4].dim[0] = 2, "dimension 0 of src4 is 2, expected 6");
    BREAK(LT_OP_ATTENTION, a.src[4].dtype = LT_DTYPE_I32, "src4 is I32, expected F32");
    BREAK(LT_OP_ATTENTION, a.params.ATTENTION.cap = -1, "the soft cap is -1");
    BREAK(LT_OP_ATTENTION, a.params.ATTENTION.cap = NAN, "the soft cap is");
    BREAK(LT_OP_ATTENTION, a.params.ATTENTION.cap = INFINITY, "the soft cap is inf");
    BREAK(LT_OP_SOFTCAP, a.params.SOFTCAP.cap = 0, "the soft cap is 0, expected a positive number");
    BREAK(LT_OP_SOFTCAP, a.dst.dim[1] = 32, "dimension 1 of dst");
}

static void experts_are_checked(void **state)
{
    (void)state;
    lt_op_args each = good(LT_OP_EXPERT_LINEAR);
    each.src[0] = view(LT_DTYPE_Q8A, 3, 5, 4, 512); /* a row for each (token, k) */
    assert_int_equal(lt_op_check(&each, NULL), LT_OK);
    each = good(LT_OP_QUANTIZE);
    each.src[0] = view(LT_DTYPE_F32, 3, 5, 4, 64), each.dst = view(LT_DTYPE_Q8A, 3, 5, 4, 64);
    assert_int_equal(lt_op_check(&each, NULL), LT_OK);
    BREAK(LT_OP_QUANTIZE, a.src[0] = view(LT_DTYPE_F32, 3, 5, 4, 64), "dst has 2 dimensions, expected 3");
    BREAK(LT_OP_TOP_K, a.params.TOP_K.k = 3, "dimension 1 of dst is 4, expected 3");
    BREAK(LT_OP_TOP_K, (a.src[0] = view(LT_DTYPE_F32, 2, 5, 3, 0)), "4 of 3 columns");
    BREAK(LT_OP_TOP_SHARE, a.src[1].dim[0] = 4, "dimension 0 of src1 is 4, expected 5");
    BREAK(LT_OP_EXPERT_LINEAR, (a.src[0] = view(LT_DTYPE_F32, 2, 5, 512, 0)), "src0 is F32, expected Q8A");
    BREAK(LT_OP_EXPERT_LINEAR, (a.src[0] = view(LT_DTYPE_Q8A, 3, 5, 3, 512)), "dimension 1 of src0 is 3, expected 4");
    BREAK(LT_OP_EXPERT_LINEAR, (a.src[1] = view(LT_DTYPE_Q4_K, 2, 64, 512, 0)), "src1 has 2 dimensions, expected 3");
    BREAK(LT_OP_EXPERT_LINEAR, a.dst.dim[2] = 63, "dimension 2 of dst is 63, expected 64");
    BREAK(LT_OP_EXPERT_LINEAR, a.params.EXPERT_LINEAR.first = INT32_MAX, "experts from 2147483647 on");
    BREAK(LT_OP_EXPERT_BIAS, a.src[1].dim[1] = 32, "dimension 1 of src1 is 32, expected 64");
    BREAK(LT_OP_EXPERT_SUM, a.src[1].dim[1] = 3, "dimension 1 of src1 is 3, expected 4");
    BREAK(LT_OP_CLAMP_MUL, a.params.CLAMP_MUL.limit = 0, "the limit 0");
}

static void aliases_are_checked(void **state)
{
    (void)state;
    BREAK(LT_OP_ADD, a.dst.addr = a.src[1].addr, "dst is src1");
    BREAK(LT_OP_TAKE_ROWS, a.dst.addr = a.src[0].addr, "dst is src0");
    BREAK(LT_OP_QUANTIZE, a.dst.addr = a.src[0].addr, "dst is src0");
    BREAK(LT_OP_SCALE, (a.dst.addr = a.src[0].addr, a.dst.stride[0] = 512), "in place with stride 512");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_launch_of_each_op_passes), cmocka_unit_test(views_are_checked),
        cmocka_unit_test(contracts_are_checked),           cmocka_unit_test(cache_layouts_are_checked),
        cmocka_unit_test(caps_and_sinks_are_checked),      cmocka_unit_test(aliases_are_checked),
        cmocka_unit_test(experts_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
