/* Kernels and lists of the CUDA device on a fake driver, which computes nothing: what is loaded, launched, fused, refused. */
#include "fake_cuda/fake_rig.h"

static lt_op_args add_args(const rig *r)
{
    lt_view v = {.addr = r->mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {2, 64}, .stride = {256, 4}};
    lt_op_args a = {.op = LT_OP_ADD, .n_src = 2, .src = {v, v}, .dst = v, .name = "blk.3.sum"};
    a.src[1].addr += 4096;
    a.dst.addr += 8192;
    return a;
}

static void kernels_load_by_family_and_count(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family) {
        print_message("this build has no kernels\n");
        skip();
    }
    rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
    lt_op_args a = add_args(&r);
    lt_device_info info;
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    assert_int_equal(counts().modules, 0);
    fake->fail_call("cuModuleLoadData", 1, LT_CU_NO_BINARY_FOR_GPU);
    assert_int_equal(lt__device_prepare(r.dev, &a, &r.err), LT_E_UNSUPPORTED);
    assert_non_null(strstr(r.err.text, "family 'rows'"));
    fake->set_neighbour(100 * MIB, true); /* takes memory while kernels are loaded */
    assert_int_equal(lt__queue_launch(r.q, &a, &r.err), LT_OK); /* loads it too */
    fake->set_neighbour(0, true);
    lt_device_get_info(r.dev, &info);
    assert_int_equal(info.fixed_bytes, FAKE_CUDA_CONTEXT_BYTES + LT_CUDA_MARGIN + FAKE_CUDA_MODULE_BYTES);
    assert_int_equal(counts().modules, 1);
    OK(lt__device_prepare(r.dev, &a, &r.err)); /* and what lists fuse to */
    assert_int_equal(counts().modules, 2);
    for (int i = 0; i < 10; i++)
        OK(lt__queue_launch(r.q, &a, &r.err));
    assert_int_equal(counts().launches, 11);
    assert_int_equal(counts().modules, 2);
    assert_int_equal(fake->calls("cuModuleGetFunction"), 1);
    fake->fail_call("cuLaunchKernel", 1, LT_CU_LAUNCH_OUT_OF_RESOURCES);
    assert_int_not_equal(lt__queue_launch(r.q, &a, &r.err), LT_OK);
    assert_non_null(strstr(r.err.text, "blk.3.sum"));
    OK(lt__queue_launch(r.q, &a, &r.err)); /* that one was not fatal */
    arm(LT_FAULT_LAUNCH, 1);
    OK(lt__queue_launch(r.q, &a, &r.err));
    assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
    assert_non_null(strstr(r.err.text, "blk.3.sum"));
    close_rig(&r);
}

static void sync_check_names_the_kernel(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    for (int i = 0; i < 2; i++) {
        rig r = open_rig(i ? "cuda:sync-check=1," LT_CUDA_FAKE : "cuda:sync-check=1,fail=launch:2," LT_CUDA_FAKE);
        lt_op_args a = add_args(&r);
        OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
        OK(lt__queue_launch(r.q, &a, &r.err));
        if (i)
            fake->break_context(LT_CU_ILLEGAL_ADDRESS);
        assert_int_equal(lt__queue_launch(r.q, &a, &r.err), LT_E_DEVICE_LOST);
        assert_non_null(strstr(r.err.text, "blk.3.sum"));
        assert_int_equal(lt_queue_sync(r.copy, &r.err), LT_E_DEVICE_LOST);
        assert_non_null(strstr(r.err.text, "blk.3.sum"));
        lt_queue_destroy(r.q);
        lt_queue_destroy(r.copy);
        lt_device_unreserve(r.dev, r.mem, 256 * MIB);
        lt_device_close(r.dev);
        assert_int_equal(lt_ctx_host_bytes(r.ctx), 0);
        lt_ctx_destroy(r.ctx);
        assert_nothing_left();
    }
}

/* ---- lists ---- */

#define LISTED 20
typedef struct listed {
    lt_op_args        args[LISTED];
    const lt_op_args *ptrs[LISTED];
    char              names[LISTED][24];
    lt_launch_list    list;
} listed;

static void make_list(listed *l, const rig *r)
{
    for (int i = 0; i < LISTED; i++) {
        snprintf(l->names[i], sizeof l->names[i], "blk.%d.sum", i);
        l->args[i] = add_args(r);
        l->args[i].name = l->names[i];
        l->ptrs[i] = &l->args[i];
    }
    l->list = (lt_launch_list){.args = l->ptrs, .n = LISTED, .replay = true};
}

static uint64_t graph_runs(const rig *r)
{
    lt_device_stats st;
    lt_device_get_stats(r->dev, &st);
    assert_int_equal(st.launches, counts().launches);
    return st.graphs;
}

static rig open_listed(const char *spec, listed *l)
{
    rig r = open_rig(spec);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    make_list(l, &r);
    return r;
}

static void lists_are_replayed_as_graphs(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    listed l;
    rig r = open_listed("cuda:" LT_CUDA_FAKE, &l);
    OK(lt__list_compile(r.dev, &l.list, &r.err));
    assert_int_equal(counts().launches, 0);
    assert_int_equal(counts().graphs, 1); /* what it was made from is gone */
    for (int i = 0; i < 3; i++)
        OK(lt__list_run(r.q, &l.list, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    assert_int_equal(counts().launches, 3 * LISTED);
    assert_int_equal(fake->calls("cuLaunchKernel") + fake->calls("cuLaunchKernelEx"), LISTED);
    assert_int_equal(graph_runs(&r), 3);
    lt__list_free(r.dev, &l.list);
    assert_int_equal(counts().graphs, 0);
    l.list.replay = false; /* runs once: no graph */
    OK(lt__list_run(r.q, &l.list, &r.err));
    assert_int_equal(graph_runs(&r), 3);
    assert_int_equal(fake->calls("cuLaunchKernel") + fake->calls("cuLaunchKernelEx"), 2 * LISTED);
    lt__list_free(r.dev, &l.list);
    assert_int_equal(lt__list_run(r.copy, &l.list, &r.err), LT_E_INVALID);
    l.args[3].src[0].dim[1] = 63;
    assert_int_equal(lt__list_run(r.q, &l.list, &r.err), LT_E_INVALID);
    assert_non_null(strstr(r.err.text, "blk.3.sum"));
    close_rig(&r);
}

/* Whatever of a graph the driver refuses: the launches run, one by one. */
static void refused_graphs_run_launch_by_launch(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    static const char *const calls[] = {"cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuLaunchKernel",
                                        "cuGraphInstantiateWithFlags", "cuGraphUpload", "cuStreamSynchronize", "cuGraphLaunch"};
    static const char *const specs[] = {"cuda:graphs=0," LT_CUDA_FAKE, "cuda:sync-check=1," LT_CUDA_FAKE,
                                        "cuda:early=0,fail=graph:1," LT_CUDA_FAKE, "cuda:early=0,fail=graph:2," LT_CUDA_FAKE};
    const size_t n = sizeof calls / sizeof *calls, m = sizeof specs / sizeof *specs;
    for (size_t i = 0; i < n + m; i++) {
        listed l;
        rig r = open_listed(i < n ? "cuda:early=0," LT_CUDA_FAKE : specs[i - n], &l);
        if (i < n)
            fake->fail_call(calls[i], 1, LT_CU_OUT_OF_MEMORY);
        OK(lt__list_compile(r.dev, &l.list, &r.err));
        OK(lt__list_run(r.q, &l.list, &r.err));
        OK(lt_queue_sync(r.q, &r.err));
        assert_int_equal(counts().launches, LISTED);
        assert_int_equal(graph_runs(&r), 0);
        lt__list_free(r.dev, &l.list);
        close_rig(&r);
    }
}

/* Early launches are tried first where the card is new enough, and done without when they fail. */
static void early_launches_may_be_refused(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family || last_arch() < 90)
        skip();
    for (int i = 0; i < 3; i++) {
        listed l;
        rig r = open_listed("cuda:early=1," LT_CUDA_FAKE, &l);
        if (i == 1)
            fake->fail_call("cuLaunchKernelEx", 3, LT_CU_NOT_SUPPORTED);
        if (i == 2)
            fake->fail_call("cuGraphInstantiateWithFlags", 1, LT_CU_NOT_SUPPORTED);
        OK(lt__list_run(r.q, &l.list, &r.err));
        assert_int_equal(graph_runs(&r), 1);
        assert_int_equal(fake->calls("cuLaunchKernel"), i ? LISTED : 0);
        lt__list_free(r.dev, &l.list);
        close_rig(&r);
    }
}

/* A layer's small ops by the number of kernels left, and by what of them is told not to be needed after. */
static void neighbours_are_fused(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    lt_view h = {.addr = r.mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 256}, .stride = {1024, 4}}, y = h, x = h, q = h;
    lt_view w = {.addr = r.mem + 0x1000, .dtype = LT_DTYPE_F32, .ndim = 1, .dim = {256}, .stride = {4}};
    y.addr += 0x2000;
    x.addr += 0x3000;
    q.addr = y.addr; /* as layouts have it: the sum was the last to read y */
    q.dtype = LT_DTYPE_Q8A;
    q.stride[0] = 320;
    q.stride[1] = 40;
    lt_op_args ops[] = {
        {.op = LT_OP_ADD, .n_src = 2, .src = {h, y}, .dst = h, .name = "residual"},
        {.op = LT_OP_RMS_NORM, .n_src = 2, .src = {h, w}, .dst = x, .params.RMS_NORM = {1e-5f}, .name = "norm"},
        {.op = LT_OP_QUANTIZE, .n_src = 1, .src = {x}, .dst = q, .name = "norm.q8a"},
        {.op = LT_OP_SCALE, .n_src = 1, .src = {h}, .dst = h, .params.SCALE = {2}, .name = "scale"},
    };
    const lt_op_args *ptrs[] = {&ops[0], &ops[1], &ops[2], &ops[3]};
    for (int i = 0; i < 2; i++) { /* a sum that is not what the norm reads stays alone */
        lt_launch_list list = {.args = ptrs, .n = 4};
        ops[1].src[0].addr = i ? x.addr : h.addr;
        uint64_t before = counts().launches;
        OK(lt__list_run(r.q, &list, &r.err));
        assert_int_equal(counts().launches - before, i ? 3 : 2);
        lt__list_free(r.dev, &list);
    }
    close_rig(&r);
}

/* One token's way from rotation to quantised attention over a cache of eight pages, each head with its own keys. */
static void attention_args(const rig *r, lt_op_args ops[5])
{
    const lt_kv_layout kv = {.page_bytes = 2 * 2 * 256 * 128, .v_offset = 2 * 256 * 128, .kv_heads = 2, .head_dim = 64, .dtype = LT_DTYPE_F16};
    lt_view q = {.addr = r->mem, .dtype = LT_DTYPE_F32, .ndim = 3, .dim = {1, 2, 64}, .stride = {512, 256, 4}}, k = q, v = q, y = q;
    k.addr += 0x1000, v.addr += 0x2000, y.addr += 0x3000;
    lt_view turn = {.addr = r->mem + 0x4000, .dtype = LT_DTYPE_F32, .ndim = 3, .dim = {1, 32, 2}, .stride = {256, 8, 4}};
    lt_view pos = {.addr = r->mem + 0x5000, .dtype = LT_DTYPE_I32, .ndim = 1, .dim = {1}, .stride = {4}}, table = pos, sinks = pos;
    table.addr += 0x100, table.dim[0] = 8, sinks.addr += 0x200, sinks.dim[0] = 2, sinks.dtype = LT_DTYPE_F32;
    lt_view cache = {.addr = r->mem + 0x10000, .dtype = LT_DTYPE_I8, .ndim = 1, .dim = {8 * (int64_t)kv.page_bytes}, .stride = {1}};
    lt_view flat = {.addr = y.addr, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 128}, .stride = {512, 4}}, q8 = flat;
    q8.addr += 0x800, q8.dtype = LT_DTYPE_Q8A, q8.stride[0] = 160, q8.stride[1] = 40;
    for (int i = 0; i < 2; i++)
        ops[i] = (lt_op_args){.op = LT_OP_ROPE, .n_src = 2, .src = {i ? k : q, turn}, .dst = i ? k : q, .params.ROPE = {LT_ROPE_HALVES, 64}};
    ops[2] = (lt_op_args){.op = LT_OP_KV_STORE, .n_src = 4, .src = {k, v, pos, table}, .dst = cache, .params.KV_STORE = {kv}, .name = "kv_store"};
    ops[3] = (lt_op_args){.op = LT_OP_ATTENTION, .n_src = 4, .src = {q, cache, pos, table, sinks}, .dst = y, .name = "attn",
                          .params.ATTENTION = {.kv = kv, .heads = 2, .scale = 0.125f}, .scratch = r->mem + 0x400000};
    ops[4] = (lt_op_args){.op = LT_OP_QUANTIZE, .n_src = 1, .src = {flat}, .dst = q8, .name = "attn.q8a"};
}

static const char *family_for(const rig *r, const lt_op_args *a)
{
    const char *why = "";
    uint32_t f;
    return lt__cuda_find(lt__cuda_of(r->dev), a, &f, &why) ? lt__cuda_families[f].name : why;
}

/* Kernels with caps and sinks are families of their own. A cap keeps one token's attention apart from what comes before it;
 * a sink joins in the merge, which still quantises. */
static void caps_and_sinks_have_kernels_of_their_own(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 8 * MIB, &r.err));
    for (int form = 0; form < 4; form++) {
        lt_op_args ops[5], *at = &ops[3];
        const lt_op_args *ptrs[] = {&ops[0], &ops[1], &ops[2], at, &ops[4]};
        attention_args(&r, ops);
        lt_attention_params *p = &at->params.ATTENTION;
        p->cap = form & 1 ? 50 : 0, at->n_src = form & 2 ? 5 : 4;
        lt_launch_list list = {.args = ptrs, .n = 5, .dead = r.mem, .dead_bytes = 0x4000};
        uint64_t before = counts().launches;
        OK(lt__list_run(r.q, &list, &r.err));
        assert_int_equal(counts().launches - before, form & 1 ? 3 : 2);
        lt__list_free(r.dev, &list);
        assert_string_equal(family_for(&r, at), form ? "attention_capped" : "attention");
        at->prefill = true;
        assert_true(strncmp(family_for(&r, at), "flash", 5) == 0 && (strstr(family_for(&r, at), "_capped") != NULL) == (form != 0));
        p->cap *= 100; /* too large for half precision */
        assert_int_equal(strcmp(family_for(&r, at), "attention_capped") == 0, form & 1);
        p->kv.head_dim = 72, p->how = LT_ATTENTION_SAGE;
        assert_non_null(strstr(family_for(&r, at), "sage attention needs"));
    }
    close_rig(&r);
}

/* Int8 attention over heads of 128: no more blocks than the card has room for, launched early behind the kernel that rounds
 * the keys, or, switched off or refused, as any other. */
static void sage_is_launched_in_blocks_that_stay(void **state)
{
    (void)state;
    if (!lt__cuda_has_family("flash_sm90a") || last_arch() != 90)
        skip();
    for (int i = 0; i < 3; i++) {
        rig r = open_rig("cuda:" LT_CUDA_FAKE);
        OK(lt_device_commit(r.dev, r.mem, 16 * MIB, &r.err));
        lt_op_args ops[5], *at = &ops[3];
        attention_args(&r, ops);
        lt_attention_params *p = &at->params.ATTENTION;
        int64_t tokens = i == 2 ? 100 : 1000; /* blocks of rows: 1 or 8, for each of two heads; the card has 16 SMs */
        uint64_t page = 2 * 2 * LT_KV_PAGE * 128 * 2;
        p->kv = (lt_kv_layout){.dtype = LT_DTYPE_F16, .kv_heads = 2, .head_dim = 128, .page_bytes = page, .v_offset = page / 2};
        p->heads = i == 1 ? 4 : 2, p->how = LT_ATTENTION_SAGE;
        at->prefill = true;
        at->src[0].dim[0] = at->dst.dim[0] = at->src[2].dim[0] = tokens;
        at->src[0].dim[1] = at->dst.dim[1] = p->heads;
        at->src[0].dim[2] = at->dst.dim[2] = 128;
        at->src[0].stride[0] = at->dst.stride[0] = p->heads * 512, at->src[0].stride[1] = at->dst.stride[1] = 512;
        at->src[1].dim[0] = 8 * (int64_t)page;
        at->src[1].addr = r.mem + 4 * MIB, at->scratch = r.mem + 12 * MIB, at->dst.addr = r.mem + 14 * MIB, at->src[0].addr = r.mem + MIB;
        assert_string_equal(family_for(&r, at), "flash_sm90a");
        OK(lt__queue_launch(r.q, at, &r.err));
        OK(lt_queue_sync(r.q, &r.err));
        assert_int_equal(counts().launch_x, i == 2 ? 2 : 16);
        assert_int_equal(counts().launches, 2);
        close_rig(&r);
    }
}

static void products_pass_biases_to_their_neighbours(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    lt_op_args ops[6] = {0};
    const lt_op_args *ptrs[6];
    for (int i = 0; i < 6; i++) {
        lt_view x = {.addr = r.mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 64}, .stride = {256, 4}}, y = x, w = x, bias = x;
        y.addr += 0x1000 * (uint64_t)(1 + i / 2), y.dim[1] = 32;
        w.addr += 0x10000 * (uint64_t)(1 + i / 2), w.dim[0] = 32;
        bias = (lt_view){.addr = r.mem + 0x8000, .dtype = LT_DTYPE_F32, .ndim = 1, .dim = {32}, .stride = {4}};
        ops[i] = i % 2 ? (lt_op_args){.op = LT_OP_ADD_ROW, .n_src = 2, .src = {y, bias}, .dst = y, .name = "bias"}
                       : (lt_op_args){.op = LT_OP_LINEAR, .n_src = 2, .src = {x, w}, .dst = y, .name = "product"};
        ptrs[i] = &ops[i];
    }
    for (int i = 0; i < 2; i++) { /* the second time a bias writes what the products read */
        lt_launch_list list = {.args = ptrs, .n = 6};
        ops[1].dst.addr = ops[1].src[0].addr = i ? r.mem + 128 : ops[0].dst.addr;
        uint64_t before = counts().launches;
        OK(lt__list_run(r.q, &list, &r.err));
        assert_int_equal(counts().launches - before, i ? 5 : 4);
        lt__list_free(r.dev, &list);
    }
    close_rig(&r);
}

/* ---- experts ---- */

static lt_view view3(lt_addr at, lt_dtype t, int64_t a, int64_t b, int64_t c)
{
    uint64_t row = 0;
    assert_true(lt_dtype_row_bytes(t, (uint64_t)c, &row));
    return (lt_view){at, t, 3, {a, b, c}, {b * (int64_t)row, (int64_t)row, lt_dtype_get(t)->block_bytes}};
}

static lt_view view2(lt_addr at, lt_dtype t, int64_t a, int64_t b)
{
    lt_view v = view3(at, t, 1, a, b);
    return (lt_view){at, t, 2, {a, b}, {v.stride[1], v.stride[2]}};
}

#define EXPERTS 6
/* A product of `tokens` tokens with 4 picks each, 96 rows of 256 columns, of experts first .. first + n - 1; own: x of each pick. */
static lt_op_args product_args(const rig *r, lt_dtype t, int64_t tokens, uint32_t first, int64_t n, bool own)
{
    const lt_dtype x = lt_dtype_get(t)->kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32;
    return (lt_op_args){.op = LT_OP_EXPERT_LINEAR, .n_src = 3, .params.EXPERT_LINEAR = {first}, .name = "product", .scratch = r->mem + 0x4000000,
                        .src = {own ? view3(r->mem, x, tokens, 4, 256) : view2(r->mem, x, tokens, 256), view3(r->mem + 0x1000000, t, n, 96, 256),
                                view2(r->mem + 0x2000000, LT_DTYPE_I32, tokens, 4)},
                        .dst = view3(r->mem + 0x3000000, LT_DTYPE_F32, tokens, 4, 96)};
}

static uint64_t launches_of(rig *r, const lt_op_args *a)
{
    uint64_t before = counts().launches;
    OK(lt__queue_launch(r->q, a, &r->err));
    return counts().launches - before;
}

/* How many kernels a product is, of which family, and what scratch it asks for, by dtype and number of tokens. */
static void products_of_experts_go_by_their_number(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    static const struct { lt_dtype t; int64_t tokens; bool prefill; const char *family; uint64_t launches; } rows[] = {
        {LT_DTYPE_MXFP4, 1, false, "experts", 1},  {LT_DTYPE_MXFP4, 4, true, "experts", 1}, /* 16 pairs: a block each */
        {LT_DTYPE_Q4_K, 5, true, "experts", 2},    /* listed, then by tiles of eight */
        {LT_DTYPE_Q6_K, 32, true, "experts", 2},   {LT_DTYPE_Q8_0, 33, true, "experts_int8", 4}, /* and packed and multiplied */
        {LT_DTYPE_MXFP4, 200, false, "experts_int8", 4}, {LT_DTYPE_F32, 3, true, "experts", 1}, {LT_DTYPE_F32, 300, true, "experts", 2},
        {LT_DTYPE_F16, 1, false, "experts", 1},    {LT_DTYPE_F16, 300, false, "experts", 2},
        {LT_DTYPE_BF16, 1, true, "experts_half", 3}, /* listed, halved, multiplied */
        {LT_DTYPE_F16, 300, true, "experts_half", 3},
    };
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        rig r = open_rig("cuda:" LT_CUDA_FAKE);
        lt_op_args a = product_args(&r, rows[i / 2].t, rows[i / 2].tokens, 0, EXPERTS, i % 2);
        a.prefill = rows[i / 2].prefill;
        OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
        OK(lt__device_prepare(r.dev, &a, &r.err));
        /* what makes the list and does the rest is loaded with it, and what lists fuse to */
        assert_int_equal(counts().modules, strcmp(rows[i / 2].family, "experts") ? 3 : 2);
        assert_string_equal(family_for(&r, &a), rows[i / 2].family);
        assert_int_equal(launches_of(&r, &a), rows[i / 2].launches);
        assert_int_equal(counts().modules, strcmp(rows[i / 2].family, "experts") ? 3 : 2);
        assert_int_equal(lt__device_scratch_bytes(r.dev, &a) > 0, rows[i / 2].launches > 1);
        uint64_t whole = lt__device_scratch_bytes(r.dev, &a); /* the plan asks for it with all experts and the most tokens */
        for (int64_t n = 1; n < EXPERTS; n++) {
            a.src[1].dim[0] = n;
            assert_true(lt__device_scratch_bytes(r.dev, &a) <= whole);
        }
        a.src[1].dim[0] = EXPERTS;
        for (int64_t tokens = rows[i / 2].tokens; tokens > 0; tokens--) {
            a.src[0].dim[0] = a.src[2].dim[0] = a.dst.dim[0] = tokens;
            assert_true(lt__device_scratch_bytes(r.dev, &a) <= whole);
        }
        a.scratch = 0;
        a.src[0].dim[0] = a.src[2].dim[0] = a.dst.dim[0] = rows[i / 2].tokens;
        assert_int_equal(lt__queue_launch(r.q, &a, &r.err), rows[i / 2].launches > 1 ? LT_E_INVALID : LT_OK);
        close_rig(&r);
    }
}

/* A chunk of 32 MiB holds seven of the one kind, and a third of the other: lists, tiles of eight, then two kernels a chunk. */
static void experts_are_packed_by_chunks(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:" LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    for (int large = 0; large < 2; large++) {
        lt_op_args a = product_args(&r, LT_DTYPE_Q8_0, 64, 0, EXPERTS, false);
        const int64_t rows = large ? 16384 : 2048, cols = large ? 4096 : 2048, n = large ? 3 : 16;
        a.src[0] = view2(r.mem, LT_DTYPE_Q8A, 64, cols);
        a.src[1] = view3(r.mem + 0x100000000, LT_DTYPE_Q8_0, n, rows, cols);
        a.dst = view3(r.mem + 0x3000000, LT_DTYPE_F32, 64, 4, rows);
        assert_int_equal(launches_of(&r, &a), large ? 2 + 2 * 3 * 3 : 2 + 2 * 3);
        assert_in_range(lt__device_scratch_bytes(r.dev, &a), 16 * MIB, 48 * MIB);
    }
    close_rig(&r);
}

static void older_cards_and_odd_rows_of_experts(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:" LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    lt_op_args a = product_args(&r, LT_DTYPE_Q4_K, 300, 0, EXPERTS, false), odd = a;
    odd.src[1].addr += 8; /* rows of Q4_K are staged whole: without tiles of eight all goes to the tensor cores */
    assert_int_equal(launches_of(&r, &odd), 3);
    odd = product_args(&r, LT_DTYPE_F16, 300, 0, EXPERTS, false), odd.src[1].stride[1] += 2, odd.src[1].stride[0] += 192, odd.prefill = true;
    assert_string_equal(family_for(&r, &odd), "experts");
    assert_int_equal(launches_of(&r, &odd), 1); /* the plain kernel, a row of the grid a pair */
    assert_int_equal(counts().launch_x, 96 / 4);
    odd.src[0].dim[0] = odd.src[2].dim[0] = odd.dst.dim[0] = 20000; /* 80,000 pairs: three times */
    assert_int_equal(launches_of(&r, &odd), 3);
    lt__cuda_of(r.dev)->props.major = 7, lt__cuda_of(r.dev)->props.minor = 5;
    assert_string_equal(family_for(&r, &a), "experts");
    assert_int_equal(launches_of(&r, &a), 2);
    close_rig(&r);
}

/* A launch's blocks tell which kernel it is: lines.cuh takes 16 rows a block of Q4_0, team.cuh 8. */
static void rows_in_host_memory_go_by_lines(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    const lt_addr host = 0x7000000020; /* of no reservation, and off the lines of a memory */
    for (int64_t tokens = 1; tokens <= 2; tokens++)
        for (int on_host = 0; on_host < 2; on_host++) {
            lt_op_args a = {.op = LT_OP_LINEAR, .n_src = 2, .name = "product",
                            .src = {view2(r.mem, LT_DTYPE_Q8A, tokens, 1024), view2(on_host ? host : r.mem + 0x1000000, LT_DTYPE_Q4_0, 960, 1024)},
                            .dst = view2(r.mem + 0x3000000, LT_DTYPE_F32, tokens, 960)};
            lt_op_args odd = a;
            assert_int_equal(launches_of(&r, &a), 1);
            if (tokens == 1)
                assert_int_equal(counts().launch_x, on_host ? 960 / 16 : 960 / 8);
            odd.src[1].stride[0] += 18; /* rows with something between are loaded as ever */
            assert_int_equal(launches_of(&r, &odd), 1);
            if (tokens == 1)
                assert_int_equal(counts().launch_x, 960 / 8);
        }
    lt_op_args experts = product_args(&r, LT_DTYPE_Q4_0, 1, 0, EXPERTS, false);
    assert_int_equal(launches_of(&r, &experts), 1);
    assert_int_equal(counts().launch_x, 96 / 8);
    experts.src[1].addr = host;
    assert_int_equal(launches_of(&r, &experts), 1);
    assert_int_equal(counts().launch_x, 96 / 16);
    /* One x, two weights: one launch, but not of a weight here and one there. */
    for (int apart = 0; apart < 2; apart++) {
        lt_op_args ops[2];
        const lt_op_args *ptrs[] = {&ops[0], &ops[1]};
        lt_launch_list list = {.args = ptrs, .n = 2};
        for (int i = 0; i < 2; i++)
            ops[i] = (lt_op_args){.op = LT_OP_LINEAR, .n_src = 2, .name = "product",
                                  .src = {view2(r.mem, LT_DTYPE_Q8A, 1, 1024), view2(i && apart ? r.mem + 0x1000000 : host + (lt_addr)i * 0x1000000, LT_DTYPE_Q4_0, 960, 1024)},
                                  .dst = view2(r.mem + 0x3000000 + (lt_addr)i * 0x10000, LT_DTYPE_F32, 1, 960)};
        uint64_t before = counts().launches;
        OK(lt__list_run(r.q, &list, &r.err));
        assert_int_equal(counts().launches - before, 1 + apart);
        lt__list_free(r.dev, &list);
    }
    close_rig(&r);
}

static void what_experts_refuse(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    rig r = open_rig("cuda:" LT_CUDA_FAKE);
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    lt_op_args top = {.op = LT_OP_TOP_K, .n_src = 1, .params.TOP_K = {4}, .src = {view2(r.mem, LT_DTYPE_F32, 3, 1024)},
                      .dst = view2(r.mem + 0x10000, LT_DTYPE_I32, 3, 4), .name = "ids"};
    assert_string_equal(family_for(&r, &top), "experts");
    assert_int_equal(launches_of(&r, &top), 1);
    top.src[0].dim[1]++, top.src[0].stride[0] += 4;
    assert_non_null(strstr(family_for(&r, &top), "1024 experts"));
    assert_int_equal(lt__queue_launch(r.q, &top, &r.err), LT_E_UNSUPPORTED);
    assert_non_null(strstr(r.err.text, "ids: TOP_K"));
    lt_op_args a = product_args(&r, LT_DTYPE_Q8_0, 1, 0, 16384, false);
    assert_string_equal(family_for(&r, &a), "experts");
    a.src[1].dim[0]++;
    assert_non_null(strstr(family_for(&r, &a), "16,384 experts"));
    a = product_args(&r, LT_DTYPE_F32, 1, 0, 1, false);
    a.src[1].dim[1] = a.dst.dim[2] = INT32_MAX;
    assert_non_null(strstr(family_for(&r, &a), "two billion"));
    close_rig(&r);
}

/* A token of gpt-oss's block: router, products, biases, gate and sum by the kernels they become. */
static void a_block_of_experts_is_fused(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    for (int form = 0; form < 4; form++) {
        const bool sliced = form & 1, partly = form == 2, apart = form == 3; /* partly: another list does the rest; apart: biases and shares of other ids */
        rig r = open_rig("cuda:fuse=1," LT_CUDA_FAKE);
        OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
        lt_op_args ops[16];
        const lt_op_args *ptrs[16];
        size_t n = 0;
        lt_view scores = view2(r.mem + 0x100000, LT_DTYPE_F32, 1, EXPERTS), share = view2(r.mem + 0x110000, LT_DTYPE_F32, 1, 4);
        lt_view ids = view2(r.mem + 0x2000000, LT_DTYPE_I32, 1, 4), other = ids, bias = view2(r.mem + 0x120000, LT_DTYPE_F32, EXPERTS, 96);
        other.addr += 64;
        ops[n++] = (lt_op_args){.op = LT_OP_TOP_K, .n_src = 1, .params.TOP_K = {4}, .src = {scores}, .dst = ids};
        ops[n++] = (lt_op_args){.op = LT_OP_TOP_SHARE, .n_src = 2, .src = {scores, apart ? other : ids}, .dst = share};
        lt_view y[2];
        for (int w = 0; w < 2; w++) { /* gate, its bias, up, its bias */
            for (uint32_t first = 0; first < EXPERTS; first += sliced ? 3 : EXPERTS) {
                ops[n] = product_args(&r, LT_DTYPE_MXFP4, 1, first, partly ? 5 : sliced ? 3 : EXPERTS, false);
                ops[n].dst.addr += 0x10000 * (uint64_t)w;
                y[w] = ops[n++].dst;
            }
            ops[n++] = (lt_op_args){.op = LT_OP_EXPERT_BIAS, .n_src = 3, .src = {y[w], bias, apart ? other : ids}, .dst = y[w]};
        }
        lt_view flat[2] = {view2(y[0].addr, LT_DTYPE_F32, 1, 4 * 96), view2(y[1].addr, LT_DTYPE_F32, 1, 4 * 96)};
        lt_view q = view3(r.mem + 0x130000, LT_DTYPE_Q8A, 1, 4, 96), down = view3(r.mem + 0x140000, LT_DTYPE_F32, 1, 4, 64);
        ops[n++] = (lt_op_args){.op = LT_OP_CLAMP_MUL, .n_src = 2, .params.CLAMP_MUL = {1.702f, 7}, .src = {flat[0], flat[1]}, .dst = flat[0]};
        ops[n++] = (lt_op_args){.op = LT_OP_QUANTIZE, .n_src = 1, .src = {y[0]}, .dst = q};
        ops[n++] = (lt_op_args){.op = LT_OP_EXPERT_LINEAR, .n_src = 3, .src = {q, view3(r.mem + 0x1000000, LT_DTYPE_Q8_0, EXPERTS, 64, 96), ids}, .dst = down};
        ops[n++] = (lt_op_args){.op = LT_OP_EXPERT_SUM, .n_src = 2, .src = {down, share}, .dst = view2(r.mem + 0x150000, LT_DTYPE_F32, 1, 64)};
        for (size_t i = 0; i < n; i++)
            ptrs[i] = &ops[i];
        lt_launch_list list = {.args = ptrs, .n = n, .replay = true};
        uint64_t before = counts().launches;
        OK(lt__list_run(r.q, &list, &r.err));
        /* routing, both products and their biases, gate and quantisation, down, sum; where it is not all experts, biases alone */
        assert_int_equal(counts().launches - before, partly ? 7 : apart ? 8 : 5);
        assert_int_equal(graph_runs(&r), 1);
        lt__list_free(r.dev, &list);
        close_rig(&r);
    }
}

static void a_list_may_find_no_host_memory(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    for (long n = 1;; n++) {
        listed l;
        rig r = open_listed("cuda:" LT_CUDA_FAKE, &l);
        arm(LT_FAULT_HOST_ALLOC, n);
        lt_status s = lt__list_compile(r.dev, &l.list, &r.err);
        bool reached = atomic_load(&g_hook.left) <= 0;
        arm(LT_FAULT_HOST_ALLOC, 0);
        if (s != LT_OK) {
            assert_int_equal(s, LT_E_HOST_OOM);
            assert_null(l.list.compiled);
        }
        OK(lt__list_run(r.q, &l.list, &r.err)); /* with memory there again */
        OK(lt_queue_sync(r.q, &r.err));
        assert_int_equal(counts().launches, LISTED);
        lt__list_free(r.dev, &l.list);
        close_rig(&r);
        if (!reached) {
            assert_true(n > 2);
            return;
        }
    }
}

static void lists_fail_as_their_launches_do(void **state)
{
    (void)state;
    if (!lt__cuda_images[0].family)
        skip();
    listed l;
    rig r = open_listed("cuda:fail=launch:8," LT_CUDA_FAKE, &l);
    assert_int_equal(lt__list_run(r.q, &l.list, &r.err), LT_E_DEVICE_LOST);
    assert_non_null(strstr(r.err.text, "blk.7.sum"));
    lt__list_free(r.dev, &l.list);
    close_rig(&r);
    for (int i = 0; i < 2; i++) { /* work of a graph, and of single launches, that breaks later */
        r = open_listed(i ? "cuda:graphs=0," LT_CUDA_FAKE : "cuda:" LT_CUDA_FAKE, &l);
        OK(lt__list_compile(r.dev, &l.list, &r.err));
        fake->break_context(LT_CU_ILLEGAL_ADDRESS);
        lt_status given = lt__list_run(r.q, &l.list, &r.err); /* the worker may be that quick */
        assert_true(given == LT_OK || given == LT_E_DEVICE_LOST);
        assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
        assert_non_null(strstr(r.err.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
        if (!i)
            for (int k = LISTED - LT_CUDA_NAMES; k < LISTED; k++)
                assert_non_null(strstr(r.err.text, l.names[k]));
        lt__list_free(r.dev, &l.list);
        close_rig(&r);
    }
    for (int k = 1; k <= LISTED; k += 6) { /* the context's faults count each launch */
        r = open_listed("cuda:" LT_CUDA_FAKE, &l);
        OK(lt__list_run(r.q, &l.list, &r.err));
        arm(LT_FAULT_LAUNCH, k);
        lt_status given = lt__list_run(r.q, &l.list, &r.err);
        assert_true(given == LT_OK || given == LT_E_DEVICE_LOST);
        assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
        assert_non_null(strstr(r.err.text, l.names[k - 1]));
        assert_int_equal(lt__list_run(r.q, &l.list, &r.err), LT_E_DEVICE_LOST);
        lt__list_free(r.dev, &l.list);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_load_by_family_and_count),
        cmocka_unit_test(sync_check_names_the_kernel),
        cmocka_unit_test(lists_are_replayed_as_graphs),
        cmocka_unit_test(refused_graphs_run_launch_by_launch),
        cmocka_unit_test(early_launches_may_be_refused),
        cmocka_unit_test(neighbours_are_fused),
        cmocka_unit_test(caps_and_sinks_have_kernels_of_their_own),
        cmocka_unit_test(sage_is_launched_in_blocks_that_stay),
        cmocka_unit_test(products_pass_biases_to_their_neighbours),
        cmocka_unit_test(products_of_experts_go_by_their_number),
        cmocka_unit_test(experts_are_packed_by_chunks),
        cmocka_unit_test(older_cards_and_odd_rows_of_experts),
        cmocka_unit_test(rows_in_host_memory_go_by_lines),
        cmocka_unit_test(what_experts_refuse),
        cmocka_unit_test(a_block_of_experts_is_fused),
        cmocka_unit_test(a_list_may_find_no_host_memory),
        cmocka_unit_test(lists_fail_as_their_launches_do),
    };
    return run_on_fake(tests, sizeof tests / sizeof *tests, "cuda kernels");
}
