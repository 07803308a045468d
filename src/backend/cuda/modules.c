/* Kernels: images loaded by family at first use, functions looked up once, launches. */
#include "backend/cuda/device.h"
#include "backend/cuda/images.h"
#include "backend/cuda/kernels/args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const lt_cuda_family lt__cuda_families[] = {
#define LT_CUDA_FAMILY(name, waits) {#name, waits, lt__cuda_rows_##name, &lt__cuda_rows_##name##_n},
#include "backend/cuda/families.def"
#undef LT_CUDA_FAMILY
    {NULL, false, NULL, NULL},
};

_Static_assert(sizeof lt__cuda_families / sizeof *lt__cuda_families - 1 <= LT_CUDA_FAMILIES, "too many families");

void lt__cuda_modules_init(lt_cuda_device *d) { pthread_mutex_init(&d->modules.lock, NULL); }

void lt__cuda_modules_deinit(lt_cuda_device *d)
{
    lt_cuda_modules *m = &d->modules;
    for (uint32_t i = 0; i < LT_CUDA_FAMILIES; i++)
        if (m->module[i])
            (void)d->cu.module_unload(m->module[i]);
    lt__free(d->base.ctx, m->functions, LT_CUDA_FUNCTIONS * sizeof *m->functions);
    pthread_mutex_destroy(&m->lock);
}

/* --- rows ----------------------------------------------------------------------------- */

const lt_cuda_row *lt__cuda_find(const lt_cuda_device *d, const lt_op_args *args, uint32_t *family, const char **why)
{
    const char *said = NULL;
    if (!d->kernels) {
        if (why)
            *why = "the device was opened with kernels=0";
        return NULL;
    }
    for (uint32_t f = 0; lt__cuda_families[f].name; f++)
        for (size_t i = 0, n = *lt__cuda_families[f].n_rows; i < n; i++) {
            const lt_cuda_row *row = &lt__cuda_families[f].rows[i];
            const char *reason = NULL;
            if (row->op != args->op)
                continue;
            if (!row->accepts || row->accepts(d, args, &reason)) {
                if (family)
                    *family = f;
                return row;
            }
            said = reason ? reason : said;
        }
    if (why)
        *why = said ? said : "no CUDA kernel for this op";
    return NULL;
}

bool lt__cuda_supports(const lt_device *dev, const lt_op_args *args, const char **why)
{
    return lt__cuda_find(lt__cuda_of(dev), args, NULL, why) != NULL;
}

uint64_t lt__cuda_scratch_bytes(const lt_device *dev, const lt_op_args *args)
{
    const lt_cuda_device *d = lt__cuda_of(dev);
    const lt_cuda_row *row = lt__cuda_find(d, args, NULL, NULL);
    return row && row->scratch ? row->scratch(d, args) : 0;
}

/* --- images --------------------------------------------------------------------------- */

static const lt_cuda_image *image_of(const char *family)
{
    for (const lt_cuda_image *i = lt__cuda_images; i->family; i++)
        if (!strcmp(i->family, family))
            return i;
    return NULL;
}

bool lt__cuda_has_family(const char *family) { return image_of(family) != NULL; }

/* Drivers load single functions at their first launch; here they are wanted before the arena is sized. */
static lt_curesult load_functions(lt_cuda_device *d, CUmodule module)
{
    unsigned n = 0;
    CUfunction list[LT_CUDA_FUNCTIONS];
    if (!d->cu.module_count || !d->cu.module_functions || !d->cu.function_load)
        return LT_CU_OK; /* before CUDA 12.4 there is no way to ask */
    lt_curesult r = d->cu.module_count(&n, module);
    if (r != LT_CU_OK || n > LT_CUDA_FUNCTIONS)
        return r;
    r = d->cu.module_functions(list, n, module);
    for (unsigned i = 0; r == LT_CU_OK && i < n; i++)
        r = d->cu.function_load(list[i]);
    return r;
}

/* By this process where NVML tells, else by all: a neighbour that takes gigabytes meanwhile must not become our fixed cost. */
static uint64_t taken(lt_cuda_device *d)
{
    uint64_t own = 0;
    size_t free = 0, total = 0;
    if (d->listed && lt__nvml_process_used(&d->nvml, &own))
        return own;
    return d->cu.memory_info(&free, &total) == LT_CU_OK && free <= total ? total - free : 0;
}

/* Under the modules' lock, in the context. What loading took counts as fixed. */
static lt_status load_family(lt_cuda_device *d, uint32_t f, lt_err *err)
{
    lt_cuda_modules *m = &d->modules;
    const char *name = lt__cuda_families[f].name;
    const lt_cuda_image *image = image_of(name);
    if (atomic_load_explicit(&m->loaded[f], memory_order_relaxed))
        return LT_OK;
    if (!image)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: this build has no kernels of the family '%s'", name);
    uint64_t before = taken(d);
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_load) ? LT_CU_OUT_OF_MEMORY
                                                          : d->cu.module_load(&m->module[f], image->data);
    if (r != LT_CU_OK) {
        m->module[f] = NULL;
        return lt__cuda_fail(d, err, r,
                             "cuda: kernels of the family '%s' do not load on %s (sm_%d%d; compiled by CUDA %d.%d, the "
                             "driver speaks %d.%d)",
                             name, d->name, d->props.major, d->props.minor, lt__cuda_image_toolkit / 1000,
                             lt__cuda_image_toolkit % 1000 / 10, d->cu.version / 1000, d->cu.version % 1000 / 10);
    }
    r = load_functions(d, m->module[f]);
    if (r != LT_CU_OK) {
        (void)d->cu.module_unload(m->module[f]);
        m->module[f] = NULL;
        return lt__cuda_fail(d, err, r, "cuda: functions of the family '%s' do not load", name);
    }
    uint64_t after = taken(d), more = after > before ? after - before : 0;
    atomic_fetch_add_explicit(&d->fixed_bytes, more, memory_order_relaxed);
    atomic_store_explicit(&m->loaded[f], true, memory_order_release);
    lt__log(d->base.ctx, LT_LOG_DEBUG, "cuda", "family '%s' loaded: %" PRIu64 " bytes", name, more);
    return LT_OK;
}

static uint32_t family_of(const char *name)
{
    uint32_t f = 0;
    while (lt__cuda_families[f].name && strcmp(lt__cuda_families[f].name, name))
        f++;
    LT_ASSERT(lt__cuda_families[f].name);
    return f;
}

static lt_status load_here(lt_cuda_device *d, uint32_t f, lt_err *err)
{
    if (atomic_load_explicit(&d->modules.loaded[f], memory_order_acquire))
        return LT_OK;
    lt_status s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        return s;
    pthread_mutex_lock(&d->modules.lock);
    s = load_family(d, f, err);
    pthread_mutex_unlock(&d->modules.lock);
    lt__cuda_leave(d);
    return s;
}

/* Ops may come in lists, so what neighbours of a list are fused to is loaded with the first. */
lt_status lt__cuda_prepare(lt_device *dev, const lt_op_args *args, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    const char *why = "";
    uint32_t f = 0;
    if (!lt__cuda_find(d, args, &f, &why))
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: the device cannot run %s: %s", args->name ? args->name : "launch",
                        lt_op_get(args->op)->name, why);
    lt_status s = load_here(d, f, err);
    if (s == LT_OK && args->op == LT_OP_EXPERT_LINEAR) /* lists pairs for the tensor cores, too, and multiplies what is too few for them */
        s = load_here(d, family_of("experts"), err);
    return s == LT_OK && d->fuse ? load_here(d, family_of("fused"), err) : s;
}

/* --- functions ------------------------------------------------------------------------ */

static uint32_t hash_of(uint32_t family, const char *name)
{
    uint32_t h = 2166136261u ^ family;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

static lt_status find_function(lt_cuda_device *d, uint32_t f, const char *kernel, lt_cuda_function **out, lt_err *err)
{
    lt_cuda_modules *m = &d->modules;
    lt_status s = LT_OK;
    if (!m->functions) {
        m->functions = lt__alloc_array(d->base.ctx, LT_CUDA_FUNCTIONS, sizeof *m->functions);
        if (!m->functions)
            return lt__fail_oom(err, LT_CUDA_FUNCTIONS * sizeof *m->functions, "the table of kernels");
    }
    uint32_t i = hash_of(f, kernel) % LT_CUDA_FUNCTIONS;
    for (; m->functions[i].name[0]; i = (i + 1) % LT_CUDA_FUNCTIONS)
        if (m->functions[i].family == f && !strcmp(m->functions[i].name, kernel)) {
            *out = &m->functions[i];
            return LT_OK;
        }
    LT_ASSERT(strlen(kernel) < sizeof m->functions[i].name);
    if (m->n_functions + 1 == LT_CUDA_FUNCTIONS)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: more than %d kernels in use", LT_CUDA_FUNCTIONS - 1);
    s = load_family(d, f, err);
    if (s != LT_OK)
        return s;
    CUfunction function = NULL;
    lt_curesult r = d->cu.module_function(&function, m->module[f], kernel);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: the family '%s' has no kernel '%s'", lt__cuda_families[f].name, kernel);
    int own = 0; /* a block has 48 KiB without asking for its kernel's arrays and dynamic memory together */
    r = d->cu.function_get(&own, LT_CU_FUNC_STATIC_SHARED, function);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: kernel '%s' of the family '%s' cannot be asked", kernel, lt__cuda_families[f].name);
    uint32_t left = d->props.shared_bytes > (uint32_t)own ? d->props.shared_bytes - (uint32_t)own : 0;
    m->functions[i] = (lt_cuda_function){.family = f, .shared_bytes = left, .function = function};
    memcpy(m->functions[i].name, kernel, strlen(kernel) + 1); /* a caller may have made it up on its stack */
    m->n_functions++;
    *out = &m->functions[i];
    return LT_OK;
}

static lt_status allow_shared(lt_cuda_device *d, lt_cuda_function *fn, uint32_t bytes, const char *name, lt_err *err)
{
    if (bytes <= fn->shared_bytes)
        return LT_OK;
    if (bytes > d->props.shared_optin_bytes)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: %s wants %u bytes of shared memory, the device has %u", name, fn->name,
                        bytes, d->props.shared_optin_bytes);
    lt_curesult r = d->cu.function_set(fn->function, LT_CU_FUNC_MAX_DYNAMIC_SHARED, (int)bytes);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "%s: %s is not allowed %u bytes of shared memory", name, fn->name, bytes);
    fn->shared_bytes = bytes;
    return LT_OK;
}

static lt_curesult launch_early(lt_cuda_device *d, CUfunction function, lt_cuda_dim grid, lt_cuda_dim block, uint32_t shared_bytes,
                                CUstream stream, void **params)
{
    lt_culaunchattr early = {.id = LT_CU_LAUNCH_EARLY, .value.flag = 1};
    lt_culaunch c = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream, &early, 1};
    return d->cu.launch_ex(&c, function, params, NULL);
}

lt_status lt__cuda_launch(lt_cuda_device *d, const char *family, const char *kernel, lt_cuda_dim grid, lt_cuda_dim block,
                          uint32_t shared_bytes, CUstream stream, void **params, const lt_op_args *args, lt_err *err)
{
    const char *name = args->name ? args->name : lt_op_get(args->op)->name;
    uint32_t f = family_of(family);
    lt_cuda_function *fn = NULL;
    CUfunction function = NULL;
    pthread_mutex_lock(&d->modules.lock);
    lt_status s = find_function(d, f, kernel, &fn, err);
    if (s == LT_OK)
        s = allow_shared(d, fn, shared_bytes, name, err);
    if (s == LT_OK)
        function = fn->function;
    pthread_mutex_unlock(&d->modules.lock);
    if (s != LT_OK)
        return s;
    bool capture = stream == atomic_load_explicit(&d->lists.stream, memory_order_relaxed); /* under the lists' lock */
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_launch) ? LT_CU_LAUNCH_FAILED
                    : capture && d->lists.early && lt__cuda_families[f].waits
                        ? launch_early(d, function, grid, block, shared_bytes, stream, params)
                        : d->cu.launch(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream,
                                       params, NULL);
    if (r == LT_CU_OK) {
        if (capture)
            d->lists.captured++;
        else
            atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
        return LT_OK;
    }
    return lt__cuda_fail(d, err, r, "%s: launch of %s failed, grid %u x %u x %u, block %u x %u x %u, %u bytes shared", name,
                         kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
}

/* --- tensors -------------------------------------------------------------------------- */

bool lt__cuda_has_tensors(const lt_cuda_device *d) { return d->cu.tensor_encode != NULL; }

lt_status lt__cuda_tensor_encode(lt_cuda_device *d, lt_cuda_tensor *out, uint64_t at, const uint64_t n[3], const uint64_t stride[2],
                                 uint32_t box0, uint32_t box1, const char *name, lt_err *err)
{
    unsigned box[3] = {box0, box1, 1}, steps[3] = {1, 1, 1};
    lt_curesult r = d->cu.tensor_encode(out, LT_CU_TENSOR_HALF, 3, (void *)(uintptr_t)at, n, stride, box, steps, LT_CU_TENSOR_PLAIN,
                                        LT_CU_TENSOR_SWIZZLE_128, LT_CU_TENSOR_L2_256, LT_CU_TENSOR_ZEROS);
    if (r == LT_CU_OK)
        return LT_OK;
    return lt__cuda_fail(d, err, r, "%s: no tensor map of %llu x %llu x %llu halves at %#llx", name, (unsigned long long)n[2],
                         (unsigned long long)n[1], (unsigned long long)n[0], (unsigned long long)at);
}
