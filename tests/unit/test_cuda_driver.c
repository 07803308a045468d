/* The CUDA device on a fake driver (tests/fake_cuda): memory, rollback, order, errors, leaks. */
#include "fake_cuda/fake_rig.h"

/* ---- opening ---- */

static void refused(const char *spec, lt_status want, const char *in_text)
{
    lt_ctx *ctx = open_ctx();
    lt_device *dev = NULL;
    lt_err err = {0};
    lt_status s = lt_device_open(ctx, spec, &dev, &err);
    if (s != want || err.status != want || !strstr(err.text, in_text))
        fail_msg("%s: status %d, \"%s\"; expected %d and \"%s\"", spec, s, err.text, want, in_text);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
    assert_nothing_left();
}

static void opening_says_what_is_missing(void **state)
{
    (void)state;
    start_anew();
    refused("cuda:kernels=0,driver=/nowhere/libcuda.so", LT_E_UNSUPPORTED, "/nowhere/libcuda.so");
    refused("cuda:kernels=0,driver=libm.so.6", LT_E_UNSUPPORTED, "has no cuInit");
    fake->fail_call("cuInit", 1, LT_CU_NO_DEVICE);
    refused(SPEC, LT_E_UNSUPPORTED, "cuInit");
    fake->fail_call("cuDevicePrimaryCtxRetain", 1, LT_CU_OUT_OF_MEMORY);
    refused(SPEC, LT_E_DEVICE_OOM, "CUDA_ERROR_OUT_OF_MEMORY");
    refused(SPEC ",device=1", LT_E_INVALID, "device=1");
    refused(SPEC ",device=-1", LT_E_INVALID, "device=-1");
    refused(SPEC ",vmm=2", LT_E_INVALID, "vmm=2");
    refused(SPEC ",fail=tea:1", LT_E_INVALID, "fail=tea:1");
    refused(SPEC ",fail=map:0", LT_E_INVALID, "fail=0");
    refused(SPEC ",colour=red", LT_E_INVALID, "colour");
    if (!lt__cuda_image_archs[0]) {
        refused("cuda:" LT_CUDA_FAKE, LT_E_UNSUPPORTED, "no kernels");
        return;
    }
    fake->set_version((lt__cuda_image_toolkit / 1000 - 1) * 1000 + 40);
    refused("cuda:" LT_CUDA_FAKE, LT_E_UNSUPPORTED, "too old");
    start_anew();
    fake->set_attribute(LT_CU_ATTR_CC_MAJOR, 3);
    refused("cuda:" LT_CUDA_FAKE, LT_E_UNSUPPORTED, "compute capability 3.");
}

/* Whatever step of opening fails leaves nothing behind. */
static void every_step_of_opening_may_fail(void **state)
{
    (void)state;
    static const char *const steps[] = {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
                                        "cuCtxPushCurrent_v2", "cuMemGetAllocationGranularity", "cuStreamCreate",
                                        "cuEventCreate", "cuEventRecord", "cuEventSynchronize"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        fake->reset();
        lt_ctx *ctx = open_ctx();
        lt_device *dev;
        lt_err err = {0};
        fake->fail_call(steps[i], 1, LT_CU_UNKNOWN);
        if (lt_device_open(ctx, SPEC, &dev, &err) == LT_OK)
            fail_msg("%s failed and nobody noticed", steps[i]);
        assert_true(err.text[0]);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
        assert_nothing_left();
    }
}

static void fixed_costs_are_measured(void **state)
{
    (void)state;
    static const char *const specs[] = {SPEC, "cuda:kernels=0,driver=" LT_CUDA_FAKE_FILE ",nvml=/nowhere/nvml.so"};
    for (size_t i = 0; i < 2; i++) {
        rig r = open_rig(specs[i]);
        lt_device_info info;
        lt_device_get_info(r.dev, &info);
        assert_string_equal(info.kind, "cuda");
        assert_non_null(strstr(info.name, "Fake Card"));
        char isa[16];
        snprintf(isa, sizeof isa, "sm_%d", last_arch());
        assert_string_equal(info.isa, isa);
        assert_int_equal(info.total_bytes, FAKE_CUDA_MEMORY);
        assert_int_equal(info.fixed_bytes, FAKE_CUDA_CONTEXT_BYTES + LT_CUDA_MARGIN);
        assert_int_equal(info.free_bytes, FAKE_CUDA_MEMORY - FAKE_CUDA_CONTEXT_BYTES);
        assert_false(info.host_visible);
        close_rig(&r);
    }
}

/* A neighbour that takes memory just then is not this process's cost, unless NVML cannot tell them apart. */
static void neighbours_are_no_fixed_costs(void **state)
{
    (void)state;
    static const struct { const char *spec; bool told_apart; uint64_t fixed; } rows[] = {
        {SPEC, true, FAKE_CUDA_CONTEXT_BYTES},
        {SPEC, false, FAKE_CUDA_CONTEXT_BYTES + 200 * MIB}, /* of a number that is another's nothing is believed */
        {"cuda:kernels=0,driver=" LT_CUDA_FAKE_FILE ",nvml=/nowhere/nvml.so", true, FAKE_CUDA_CONTEXT_BYTES + 200 * MIB},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake->reset();
        fake->set_neighbour(200 * MIB, rows[i].told_apart);
        rig r = {.ctx = open_ctx()};
        lt_device_info info;
        OK(lt_device_open(r.ctx, rows[i].spec, &r.dev, &r.err));
        lt_device_get_info(r.dev, &info);
        assert_int_equal(info.fixed_bytes, rows[i].fixed + LT_CUDA_MARGIN);
        assert_int_equal(info.free_bytes, FAKE_CUDA_MEMORY - FAKE_CUDA_CONTEXT_BYTES - 200 * MIB);
        lt_device_close(r.dev);
        lt_ctx_destroy(r.ctx);
        assert_nothing_left();
    }
    fake->reset();
}

/* ---- memory ---- */

static void pieces_are_large_and_counted(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    OK(lt_device_commit(r.dev, r.mem, 100 * MIB, &r.err));
    assert_int_equal(counts().handles, 4); /* 32, 32, 32, 4 */
    assert_int_equal(held(&r), 100 * MIB);
    /* A part of a piece stays until the rest goes, and is there again at once. */
    lt_device_decommit(r.dev, r.mem + 2 * MIB, 2 * MIB);
    assert_int_equal(held(&r), 100 * MIB);
    uint64_t created = fake->calls("cuMemCreate");
    OK(lt_device_commit(r.dev, r.mem + 2 * MIB, 2 * MIB, &r.err));
    assert_int_equal(fake->calls("cuMemCreate"), created);
    assert_int_equal(lt_device_commit(r.dev, r.mem + 2 * MIB, 2 * MIB, &r.err), LT_E_INVALID);
    lt_device_decommit(r.dev, r.mem + 96 * MIB, 2 * MIB);
    assert_int_equal(held(&r), 100 * MIB);
    lt_device_decommit(r.dev, r.mem + 98 * MIB, 2 * MIB);
    assert_int_equal(held(&r), 96 * MIB);
    lt_device_decommit(r.dev, r.mem, 96 * MIB);
    assert_int_equal(held(&r), 0);
    OK(lt_device_commit(r.dev, r.mem + 6 * MIB, 64 * MIB, &r.err));
    assert_int_equal(counts().handles, 3); /* 26, 32, 6 */
    /* Behind a part that was never given back. */
    lt_device_decommit(r.dev, r.mem + 34 * MIB, 36 * MIB);
    OK(lt_device_commit(r.dev, r.mem + 34 * MIB, 62 * MIB, &r.err));
    assert_int_equal(held(&r), 26 * MIB + 64 * MIB);
    assert_int_equal(lt_device_commit(r.dev, r.mem, 2 * FAKE_CUDA_MEMORY, &r.err), LT_E_INVALID);
    assert_int_equal(lt_device_commit(r.dev, r.mem + MIB, 2 * MIB, &r.err), LT_E_INVALID);
    close_rig(&r); /* takes the commits along */
}

static void out_of_memory_names_the_numbers(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    lt_addr more;
    OK(lt_device_reserve(r.dev, 4096 * MIB, &more, &r.err)); /* address space is not memory */
    assert_int_equal(lt_device_commit(r.dev, more, 2048 * MIB, &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(r.err.native, LT_CU_OUT_OF_MEMORY);
    assert_non_null(strstr(r.err.text, "33554432"));
    assert_non_null(strstr(r.err.text, "cuMemCreate"));
    assert_int_equal(held(&r), 0);
    OK(lt_device_commit(r.dev, more, 960 * MIB, &r.err));
    lt_device_unreserve(r.dev, more, 4096 * MIB);
    close_rig(&r);
}

/* Four pieces; every call of every step fails once, and all is as before. */
static void commit_rolls_back(void **state)
{
    (void)state;
    static const char *const steps[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    for (size_t i = 0; i < 5; i++)
        for (long n = 1; n <= 4; n++) {
            rig r = open_rig(SPEC);
            uint8_t mark[64], back[64];
            memset(mark, 0x5a, sizeof mark);
            OK(lt_device_commit(r.dev, r.mem + 30 * MIB, 4 * MIB, &r.err));
            OK(lt_queue_copy_in(r.q, r.mem + 32 * MIB, mark, sizeof mark, &r.err));
            if (i < 3)
                fake->fail_call(steps[i], (uint64_t)n, i ? LT_CU_UNKNOWN : LT_CU_OUT_OF_MEMORY);
            else if (i == 3)
                arm(LT_FAULT_MAP, n);
            else
                arm(LT_FAULT_COMMIT, 1);
            /* 36..64, 64..96, 96..128, 128..130 */
            memset(&r.err, 0, sizeof r.err);
            assert_int_not_equal(lt_device_commit(r.dev, r.mem + 34 * MIB, 96 * MIB, &r.err), LT_OK);
            assert_true(r.err.text[0]);
            assert_int_equal(held(&r), 4 * MIB);
            assert_int_equal(counts().mappings, 2);
            OK(lt_device_commit(r.dev, r.mem + 34 * MIB, 96 * MIB, &r.err));
            OK(lt_queue_copy_out(r.q, back, r.mem + 32 * MIB, sizeof back, &r.err));
            OK(lt_queue_sync(r.q, &r.err));
            assert_memory_equal(mark, back, sizeof mark);
            lt_device_decommit(r.dev, r.mem + 30 * MIB, 100 * MIB);
            assert_int_equal(held(&r), 0);
            close_rig(&r);
        }
}

static void faults_of_the_spec_hit_the_nth_call(void **state)
{
    (void)state;
    static const char *const specs[] = {SPEC ",fail=create:2", SPEC ",fail=map:2", SPEC ",fail=access:2"};
    for (size_t i = 0; i < 3; i++) {
        rig r = open_rig(specs[i]);
        OK(lt_device_commit(r.dev, r.mem, 32 * MIB, &r.err));
        assert_int_equal(lt_device_commit(r.dev, r.mem + 32 * MIB, 32 * MIB, &r.err), LT_E_DEVICE_OOM);
        assert_int_equal(held(&r), 32 * MIB);
        OK(lt_device_commit(r.dev, r.mem + 32 * MIB, 32 * MIB, &r.err));
        close_rig(&r);
    }
}

static void recycled_pieces_never_exceed_what_was_committed(void **state)
{
    (void)state;
    rig r = open_rig(SPEC ",recycle=64M");
    OK(lt_device_commit(r.dev, r.mem, 96 * MIB, &r.err));
    lt_device_decommit(r.dev, r.mem, 96 * MIB);
    assert_int_equal(held(&r), 64 * MIB);
    assert_int_equal(counts().mappings, 0);
    uint64_t created = fake->calls("cuMemCreate");
    OK(lt_device_commit(r.dev, r.mem + 32 * MIB, 96 * MIB, &r.err));
    assert_int_equal(fake->calls("cuMemCreate"), created + 1);
    lt_device_decommit(r.dev, r.mem + 32 * MIB, 96 * MIB);
    /* Pieces of another size do not come on top. */
    OK(lt_device_commit(r.dev, r.mem + 2 * MIB, 92 * MIB, &r.err));
    assert_int_equal(counts().peak_held_bytes, 96 * MIB);
    close_rig(&r);
}

static void what_is_kept_is_committed_again_without_the_driver(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    OK(lt_device_commit(r.dev, r.mem, 128 * MIB, &r.err));
    lt_device_keep(r.dev, 70 * MIB); /* three pieces */
    lt_device_decommit(r.dev, r.mem, 128 * MIB);
    assert_int_equal(held(&r), 96 * MIB);
    uint64_t created = fake->calls("cuMemCreate");
    OK(lt_device_commit(r.dev, r.mem, 70 * MIB, &r.err));
    assert_int_equal(fake->calls("cuMemCreate"), created + 1); /* the last, of 6 MiB */
    assert_int_equal(held(&r), 70 * MIB);
    lt_device_decommit(r.dev, r.mem, 70 * MIB);
    assert_int_equal(held(&r), 64 * MIB);
    lt_device_keep(r.dev, 0);
    assert_int_equal(held(&r), 0);
    assert_int_equal(counts().peak_held_bytes, 128 * MIB);
    close_rig(&r);
}

static void plain_memory_where_there_is_no_vmm(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fake->reset();
        rig r = {.ctx = open_ctx()};
        if (i)
            fake->set_attribute(LT_CU_ATTR_VMM, 0);
        OK(lt_device_open(r.ctx, i ? SPEC : SPEC ",vmm=0", &r.dev, &r.err));
        OK(lt_device_reserve(r.dev, 64 * MIB, &r.mem, &r.err));
        assert_int_equal(held(&r), 64 * MIB);
        assert_int_equal(counts().handles, 0);
        OK(lt_device_commit(r.dev, r.mem, 4 * MIB, &r.err));
        assert_int_equal(lt_device_commit(r.dev, r.mem + 2 * MIB, 4 * MIB, &r.err), LT_E_INVALID);
        lt_device_decommit(r.dev, r.mem, 4 * MIB);
        assert_int_equal(held(&r), 64 * MIB);
        lt_addr more = 0;
        assert_int_equal(lt_device_reserve(r.dev, 1024 * MIB, &more, &r.err), LT_E_DEVICE_OOM);
        assert_non_null(strstr(r.err.text, "1073741824"));
        lt_device_unreserve(r.dev, r.mem, 64 * MIB);
        lt_device_close(r.dev);
        assert_int_equal(lt_ctx_host_bytes(r.ctx), 0);
        lt_ctx_destroy(r.ctx);
        assert_nothing_left();
    }
}

/* ---- pinning ---- */

static void private_files_are_never_registered(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    size_t n = 64 << 10;
    FILE *f = tmpfile();
    assert_int_equal(ftruncate(fileno(f), (off_t)(2 * n)), 0);
    uint8_t *shared = mmap(NULL, n, PROT_READ, MAP_SHARED, fileno(f), 0);
    uint8_t *writable = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    uint8_t *private = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fileno(f), 0);
    uint8_t *private_rw = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(f), 0);
    uint8_t *anon = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(lt_device_pin(r.dev, private, n, &r.err), LT_E_UNSUPPORTED);
    assert_non_null(strstr(r.err.text, "private"));
    assert_int_equal(lt_device_pin(r.dev, private_rw, n, &r.err), LT_E_UNSUPPORTED);
    assert_int_equal(fake->calls("cuMemHostRegister_v2"), 1); /* the page kernels report to, when the device was opened */
    OK(lt_device_pin(r.dev, shared, n, &r.err));
    OK(lt_device_pin(r.dev, writable, n, &r.err));
    OK(lt_device_pin(r.dev, anon, n, &r.err));
    /* The read-only flag was given for the one and not for the others: the fake refuses to write there. */
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_queue_copy_out(r.q, anon, r.mem, n, &r.err));
    OK(lt_queue_copy_out(r.q, writable, r.mem, n, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    assert_int_equal(counts().violations, 0);
    assert_int_not_equal(lt_queue_copy_out(r.q, shared, r.mem, n, &r.err), LT_OK);
    assert_int_equal(counts().violations, 1);
    lt_device_unpin(r.dev, shared, n);
    lt_device_unpin(r.dev, writable, n);
    fake->set_attribute(LT_CU_ATTR_READ_ONLY_HOST_REGISTER, 0);
    assert_int_equal(counts().registrations, 1);
    fake->fail_call("cuMemHostRegister_v2", 1, LT_CU_OUT_OF_MEMORY);
    assert_int_equal(lt_device_pin(r.dev, writable, n, &r.err), LT_E_HOST_OOM);
    assert_int_equal(lt_device_pin(r.dev, anon, n, &r.err), LT_E_UNSUPPORTED); /* already */
    munmap(private_rw, n);
    assert_int_equal(lt_device_pin(r.dev, private_rw, n, &r.err), LT_E_INVALID);
    lt_queue_destroy(r.q);
    lt_queue_destroy(r.copy);
    lt_device_unreserve(r.dev, r.mem, 256 * MIB);
    lt_device_close(r.dev); /* unpins what was left */
    assert_int_equal(counts().registrations, 0);
    assert_int_equal(lt_ctx_host_bytes(r.ctx), 0);
    lt_ctx_destroy(r.ctx);
    munmap(shared, n);
    munmap(writable, n);
    munmap(private, n);
    munmap(anon, n);
    fclose(f);
}

/* ---- order and errors ---- */

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
    uint8_t *writes;
    size_t bytes;
} gate;
#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, NULL, 0}

static lt_status pass_gate(void *user, lt_err *err)
{
    (void)err;
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
    if (g->writes)
        memset(g->writes, 0x77, g->bytes);
    return LT_OK;
}

static void *open_gate(void *user)
{
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static void *open_later(void *user)
{
    usleep(20000);
    return open_gate(user);
}

/* Pageable memory behind a host call is read when its turn comes, and holds nobody up; more of it than
 * the blocks in between only waits for them. */
static void pageable_copies_keep_their_turn(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 1000, 300000, 3 << 20, 9 << 20};
    for (size_t i = 0; i < 5; i++) {
        rig r = open_rig(SPEC);
        size_t n = sizes[i];
        uint8_t *src = calloc(1, n), *dst = calloc(1, n);
        gate g = GATE;
        lt_event *ev;
        pthread_t t;
        g.writes = src;
        g.bytes = n;
        OK(lt_event_create(r.dev, &ev, &r.err));
        OK(lt_device_commit(r.dev, r.mem, 64 * MIB, &r.err));
        OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
        if (n > (3u << 20))
            pthread_create(&t, NULL, open_later, &g);
        OK(lt_queue_copy_in(r.copy, r.mem, src, n, &r.err));
        OK(lt_event_record(ev, r.copy, &r.err));
        OK(lt_queue_wait(r.q, ev, &r.err));
        if (n <= (1u << 20))
            OK(lt_queue_copy_out(r.q, dst, r.mem, n, &r.err));
        if (n > (3u << 20))
            pthread_join(t, NULL);
        open_gate(&g);
        if (n > (1u << 20))
            OK(lt_queue_copy_out(r.q, dst, r.mem, n, &r.err));
        OK(lt_queue_sync(r.q, &r.err));
        for (size_t k = 0; k < n; k++)
            if (dst[k] != 0x77)
                fail_msg("byte %zu of %zu is %02x", k, n, dst[k]);
        free(src);
        free(dst);
        lt_event_destroy(ev);
        close_rig(&r);
    }
}

/* Where nothing can be pinned, host calls work, and such a copy is refused instead of held up for ever. */
static void no_pinned_memory_is_told(void **state)
{
    (void)state;
    rig r = open_rig(SPEC ",fail=register:1");
    uint8_t b[64] = {0};
    gate g = GATE;
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
    assert_int_equal(lt_queue_copy_in(r.copy, r.mem, b, 64, &r.err), LT_E_HOST_OOM);
    assert_non_null(strstr(r.err.text, "pin"));
    open_gate(&g);
    OK(lt_queue_sync(r.copy, &r.err));
    OK(lt_queue_copy_in(r.copy, r.mem, b, 64, &r.err));
    OK(lt_queue_sync(r.copy, &r.err));
    close_rig(&r);
}

static void *late_error(void *p)
{
    rig *r = p;
    OK(lt_queue_fill(r->copy, r->mem, 1, 64, &r->err));
    return NULL;
}

static void asynchronous_errors_name_what_was_given(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    uint8_t b[64] = {0};
    lt_event *ev;
    pthread_t t;
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_event_create(r.dev, &ev, &r.err));
    OK(lt_queue_fill(r.q, r.mem, 0, 64, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    fake->break_context(LT_CU_ILLEGAL_ADDRESS);
    pthread_create(&t, NULL, late_error, &r);
    pthread_join(t, NULL);
    for (int k = 0; k < 2; k++) {
        memset(&r.err, 0, sizeof r.err);
        assert_int_equal(lt_queue_sync(r.copy, &r.err), LT_E_DEVICE_LOST);
        assert_int_equal(r.err.native, LT_CU_ILLEGAL_ADDRESS);
        assert_non_null(strstr(r.err.text, "last given on this queue: fill"));
        assert_non_null(strstr(r.err.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    }
    /* All of the device is lost, and every call says why. */
    assert_int_equal(lt_queue_copy_in(r.q, r.mem, b, 64, &r.err), LT_E_DEVICE_LOST);
    assert_non_null(strstr(r.err.text, "fill"));
    assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
    assert_int_equal(lt_event_record(ev, r.q, &r.err), LT_E_DEVICE_LOST);
    assert_true(lt_event_done(ev));
    lt_queue *more;
    assert_int_equal(lt_queue_create(r.dev, LT_QUEUE_COPY, &more, &r.err), LT_E_DEVICE_LOST);
    assert_int_not_equal(lt_device_commit(r.dev, r.mem + 2 * MIB, 2 * MIB, &r.err), LT_OK);
    lt_event_destroy(ev);
    lt_queue_destroy(r.q);
    lt_queue_destroy(r.copy);
    lt_device_unreserve(r.dev, r.mem, 256 * MIB);
    lt_device_close(r.dev);
    assert_int_equal(lt_ctx_host_bytes(r.ctx), 0);
    lt_ctx_destroy(r.ctx);
    assert_nothing_left();
}

/* A call that cannot be given fails at once, and only it. */
static void what_cannot_be_given_fails_at_once(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    uint8_t b[64] = {0};
    lt_event *ev;
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, true, NULL, 0};
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_event_create(r.dev, &ev, &r.err));
    static const char *const calls[] = {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2",
                                        "cuMemsetD8Async",      "cuLaunchHostFunc",     "cuEventRecord",
                                        "cuStreamWaitEvent"};
    for (int lap = 0; lap < 2; lap++)
        for (size_t i = 0; i < 7; i++) {
            lt_status s = LT_OK;
            if (lap)
                fake->fail_call(calls[i], 1, LT_CU_OUT_OF_MEMORY);
            switch (i) {
            case 0: s = lt_queue_copy_in(r.q, r.mem, b, 64, &r.err); break;
            case 1: s = lt_queue_copy_out(r.q, b, r.mem, 64, &r.err); break;
            case 2: s = lt_queue_copy(r.q, r.mem + 64, r.mem, 64, &r.err); break;
            case 3: s = lt_queue_fill(r.q, r.mem, 1, 64, &r.err); break;
            case 4: s = lt_queue_call(r.q, pass_gate, &g, &r.err); break;
            case 5: s = lt_event_record(ev, r.q, &r.err); break;
            default: s = lt_queue_wait(r.copy, ev, &r.err);
            }
            assert_int_equal(s, lap ? LT_E_DEVICE_OOM : LT_OK);
            OK(lt_queue_sync(r.q, &r.err));
            OK(lt_queue_sync(r.copy, &r.err));
        }
    fake->fail_call("cuStreamCreate", 1, LT_CU_OUT_OF_MEMORY);
    lt_queue *q;
    assert_int_equal(lt_queue_create(r.dev, LT_QUEUE_COPY, &q, &r.err), LT_E_DEVICE_OOM);
    fake->fail_call("cuEventCreate", 1, LT_CU_OUT_OF_MEMORY);
    lt_event *more;
    assert_int_equal(lt_event_create(r.dev, &more, &r.err), LT_E_DEVICE_OOM);
    lt_event_destroy(ev);
    close_rig(&r);
}

static lt_status refuse(void *user, lt_err *err) { return lt__fail(err, LT_E_IO, "%s", (const char *)user); }

static lt_status count_up(void *user, lt_err *err)
{
    (void)err;
    ++*(int *)user;
    return LT_OK;
}

/* A failure goes along events through queues that did nothing wrong, and not to work before it. */
static void failures_go_along_events(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    lt_queue *third;
    lt_event *before, *behind, *further;
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &third, &r.err));
    OK(lt_event_create(r.dev, &before, &r.err));
    OK(lt_event_create(r.dev, &behind, &r.err));
    OK(lt_event_create(r.dev, &further, &r.err));
    OK(lt_event_record(before, r.copy, &r.err));
    gate g = GATE;
    OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
    OK(lt_queue_call(r.copy, refuse, "page 3 is torn", &r.err));
    OK(lt_event_record(behind, r.copy, &r.err));
    OK(lt_queue_wait(r.q, behind, &r.err));
    OK(lt_event_record(further, r.q, &r.err));
    OK(lt_queue_wait(third, further, &r.err));
    int ran = 0;
    OK(lt_queue_call(third, count_up, &ran, &r.err));
    OK(lt_queue_call(r.copy, count_up, &ran, &r.err));
    open_gate(&g);
    assert_int_equal(lt_queue_sync(third, &r.err), LT_E_IO);
    assert_string_equal(r.err.text, "page 3 is torn");
    assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_IO);
    assert_int_equal(lt_queue_sync(r.copy, &r.err), LT_E_IO);
    assert_int_equal(ran, 0); /* what stands behind it is skipped */
    OK(lt_event_sync(before, &r.err));
    assert_int_equal(lt_event_sync(further, &r.err), LT_E_IO);
    lt_queue *fresh;
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &fresh, &r.err));
    OK(lt_queue_wait(fresh, before, &r.err));
    OK(lt_queue_sync(fresh, &r.err));
    OK(lt_queue_wait(fresh, behind, &r.err));
    assert_int_equal(lt_queue_sync(fresh, &r.err), LT_E_IO);
    lt_queue_destroy(fresh);
    lt_queue_destroy(third);
    lt_event_destroy(before);
    lt_event_destroy(behind);
    lt_event_destroy(further);
    close_rig(&r);
}

static lt_status rest_and_count(void *user, lt_err *err)
{
    (void)err;
    usleep(20000);
    atomic_fetch_add((_Atomic int *)user, 1);
    return LT_OK;
}

/* A lost device may be at work still where the driver only said so of one call; its memory is given back after the sync. */
static void the_sync_of_a_lost_device_waits(void **state)
{
    (void)state;
    rig r = open_rig(SPEC ",fail=copy:1");
    _Atomic int ran = 0;
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_queue_call(r.q, rest_and_count, &ran, &r.err));
    assert_int_equal(lt_queue_copy(r.q, r.mem, r.mem + MIB, 64, &r.err), LT_E_DEVICE_LOST);
    assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
    assert_non_null(strstr(r.err.text, "copy"));
    assert_int_equal(ran, 1);
    close_rig(&r);
}

static void queues_are_limited_and_used_again(void **state)
{
    (void)state;
    rig r = open_rig(SPEC);
    lt_queue *q[63];
    int n = 0;
    while (n < 63 && lt_queue_create(r.dev, LT_QUEUE_COPY, &q[n], &r.err) == LT_OK)
        n++;
    assert_int_equal(n, 62);
    assert_int_equal(r.err.status, LT_E_UNSUPPORTED);
    for (int lap = 0; lap < 3; lap++) {
        lt_queue_destroy(q[lap]);
        OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &q[lap], &r.err));
    }
    while (n--)
        lt_queue_destroy(q[n]);
    close_rig(&r);
}

/* The Nth allocation of host memory fails, for every N, in a run through the device. */
static lt_status tour(lt_ctx *ctx, lt_err *err)
{
    lt_device *dev = NULL;
    lt_queue *q = NULL;
    lt_event *ev = NULL;
    lt_addr mem = 0;
    gate g = GATE;
    static uint8_t b[300000];
    lt_status s = lt_device_open(ctx, SPEC ",recycle=32M", &dev, err);
    if (s != LT_OK)
        return s;
    s = lt_queue_create(dev, LT_QUEUE_COMPUTE, &q, err);
    if (s == LT_OK)
        s = lt_event_create(dev, &ev, err);
    if (s == LT_OK)
        s = lt_device_reserve(dev, 64 * MIB, &mem, err);
    if (s == LT_OK)
        s = lt_device_commit(dev, mem, 34 * MIB, err);
    if (s == LT_OK)
        s = lt_queue_call(q, pass_gate, &g, err);
    if (s == LT_OK)
        s = lt_queue_copy_in(q, mem, b, sizeof b, err);
    if (s == LT_OK)
        s = lt_event_record(ev, q, err);
    open_gate(&g);
    if (q && s == LT_OK)
        s = lt_queue_sync(q, err);
    lt_queue_destroy(q);
    lt_event_destroy(ev);
    if (mem)
        lt_device_unreserve(dev, mem, 64 * MIB);
    lt_device_close(dev);
    return s;
}

static void every_host_allocation_may_fail(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        fake->reset();
        lt_ctx *ctx = open_ctx();
        lt_err err = {0};
        arm(LT_FAULT_HOST_ALLOC, n);
        lt_status s = tour(ctx, &err);
        bool reached = atomic_load(&g_hook.left) <= 0;
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
        assert_nothing_left();
        if (!reached) {
            OK(s);
            assert_true(n > 8);
            return;
        }
        assert_int_equal(s, LT_E_HOST_OOM);
        assert_int_equal(err.status, LT_E_HOST_OOM);
    }
}

/* Two moments 20 ms apart, and how far the later lies behind what the device calls now. */
static void measure_times(uint64_t *between, uint64_t *ahead)
{
    rig r = open_rig(SPEC);
    lt_event *a, *b;
    OK(lt_event_create(r.dev, &a, &r.err));
    OK(lt_event_create(r.dev, &b, &r.err));
    assert_int_equal(lt_event_time_ns(a), 0);
    OK(lt_event_record(a, r.q, &r.err));
    OK(lt_event_sync(a, &r.err));
    usleep(20000);
    OK(lt_event_record(b, r.q, &r.err));
    OK(lt_event_sync(b, &r.err));
    uint64_t at = lt_event_time_ns(b);
    *between = at - lt_event_time_ns(a);
    lt_device_stats st;
    lt_device_get_stats(r.dev, &st);
    *ahead = at > st.now_ns ? at - st.now_ns : 0;
    lt_event_destroy(a);
    lt_event_destroy(b);
    close_rig(&r);
}

/* The driver's thread may get no turn while the two clocks are laid side by side: a loaded machine has several tries. */
static void time_is_of_the_device(void **state)
{
    (void)state;
    uint64_t between = 0, ahead = UINT64_MAX;
    for (int i = 0; i < 20 && (ahead > 2000000 || between < 19000000 || between > 2000000000u); i++)
        measure_times(&between, &ahead);
    assert_in_range(between, 19000000, 2000000000u);
    assert_in_range(ahead, 0, 2000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_says_what_is_missing),
        cmocka_unit_test(every_step_of_opening_may_fail),
        cmocka_unit_test(fixed_costs_are_measured),
        cmocka_unit_test(neighbours_are_no_fixed_costs),
        cmocka_unit_test(pieces_are_large_and_counted),
        cmocka_unit_test(out_of_memory_names_the_numbers),
        cmocka_unit_test(commit_rolls_back),
        cmocka_unit_test(faults_of_the_spec_hit_the_nth_call),
        cmocka_unit_test(recycled_pieces_never_exceed_what_was_committed),
        cmocka_unit_test(what_is_kept_is_committed_again_without_the_driver),
        cmocka_unit_test(plain_memory_where_there_is_no_vmm),
        cmocka_unit_test(private_files_are_never_registered),
        cmocka_unit_test(pageable_copies_keep_their_turn),
        cmocka_unit_test(no_pinned_memory_is_told),
        cmocka_unit_test(asynchronous_errors_name_what_was_given),
        cmocka_unit_test(what_cannot_be_given_fails_at_once),
        cmocka_unit_test(failures_go_along_events),
        cmocka_unit_test(the_sync_of_a_lost_device_waits),
        cmocka_unit_test(queues_are_limited_and_used_again),
        cmocka_unit_test(every_host_allocation_may_fail),
        cmocka_unit_test(time_is_of_the_device),
    };
    return run_on_fake(tests, sizeof tests / sizeof *tests, "cuda driver");
}
