/* The interface of ours against the toolkit's, where one is installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/cuda/abi.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define SAME(ours, theirs) {#ours, (long)(ours), (long)(theirs)}
static void values_are_the_toolkits(void **state)
{
    (void)state;
    static const struct { const char *name; long ours, theirs; } list[] = {
        SAME(LT_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE),
        SAME(LT_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY),
        SAME(LT_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED),
        SAME(LT_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED),
        SAME(LT_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY),
        SAME(LT_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE),
        SAME(LT_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE),
        SAME(LT_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT),
        SAME(LT_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU),
        SAME(LT_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE),
        SAME(LT_CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        SAME(LT_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE),
        SAME(LT_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND),
        SAME(LT_CU_NOT_READY, CUDA_ERROR_NOT_READY),
        SAME(LT_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS),
        SAME(LT_CU_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
        SAME(LT_CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT),
        SAME(LT_CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED),
        SAME(LT_CU_ASSERT, CUDA_ERROR_ASSERT),
        SAME(LT_CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        SAME(LT_CU_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR),
        SAME(LT_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED),
        SAME(LT_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED),
        SAME(LT_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED),
        SAME(LT_CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
        SAME(LT_CU_UNKNOWN, CUDA_ERROR_UNKNOWN),
        SAME(LT_CU_ATTR_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        SAME(LT_CU_ATTR_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        SAME(LT_CU_ATTR_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED),
        SAME(LT_CU_ATTR_MAPS_HOST, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
        SAME(LT_CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
        SAME(LT_CU_ATTR_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        SAME(LT_CU_ATTR_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
        SAME(LT_CU_ATTR_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        SAME(LT_CU_ATTR_COPY_ENGINES, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
        SAME(LT_CU_ATTR_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
        SAME(LT_CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        SAME(LT_CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        SAME(LT_CU_ATTR_MANAGED, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
        SAME(LT_CU_ATTR_CONCURRENT_MANAGED, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
        SAME(LT_CU_ATTR_SHARED_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        SAME(LT_CU_ATTR_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
        SAME(LT_CU_ATTR_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        SAME(LT_CU_ATTR_READ_ONLY_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED),
        SAME(LT_CU_TENSOR_HALF, CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        SAME(LT_CU_TENSOR_PLAIN, CU_TENSOR_MAP_INTERLEAVE_NONE),
        SAME(LT_CU_TENSOR_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B),
        SAME(LT_CU_TENSOR_L2_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        SAME(LT_CU_TENSOR_ZEROS, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        SAME(LT_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING),
        SAME(LT_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING),
        SAME(LT_CU_HOST_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY),
        SAME(LT_CU_FUNC_STATIC_SHARED, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
        SAME(LT_CU_FUNC_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
        SAME(LT_CU_MEM_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED),
        SAME(LT_CU_MEM_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE),
        SAME(LT_CU_MEM_LOCATION_HOST, CU_MEM_LOCATION_TYPE_HOST),
        SAME(LT_CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_GLOBAL),
        SAME(LT_CU_ADVISE_PREFER, CU_MEM_ADVISE_SET_PREFERRED_LOCATION),
        SAME(LT_CU_ADVISE_UNPREFER, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION),
        SAME(LT_CU_ADVISE_ACCESSED, CU_MEM_ADVISE_SET_ACCESSED_BY),
        SAME(LT_CU_ADVISE_UNACCESSED, CU_MEM_ADVISE_UNSET_ACCESSED_BY),
        SAME(LT_CU_DEVICE_CPU, CU_DEVICE_CPU),
        SAME(sizeof(lt_cumemlocation), sizeof(CUmemLocation)),
        SAME(LT_CU_MEM_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        SAME(LT_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        SAME(sizeof(lt_cumemprop), sizeof(CUmemAllocationProp)),
        SAME(offsetof(lt_cumemprop,location),offsetof(CUmemAllocationProp,location)),
        SAME(offsetof(lt_cumemprop,flags),offsetof(CUmemAllocationProp,allocFlags)),
        SAME(sizeof(lt_cumemaccess), sizeof(CUmemAccessDesc)),
        SAME(sizeof(CUresult), sizeof(lt_curesult)),
        SAME(sizeof(lt_culaunch), sizeof(CUlaunchConfig)),
        SAME(offsetof(lt_culaunch, attrs), offsetof(CUlaunchConfig, attrs)),
        SAME(offsetof(lt_culaunch, n_attrs), offsetof(CUlaunchConfig, numAttrs)),
        SAME(sizeof(lt_culaunchattr), sizeof(CUlaunchAttribute)),
        SAME(offsetof(lt_culaunchattr, value), offsetof(CUlaunchAttribute, value)),
        SAME(LT_CU_LAUNCH_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
        SAME(LT_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED),
        SAME(sizeof(lt_cumemhandle), sizeof(CUmemGenericAllocationHandle)),
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].ours != list[i].theirs)
            fail_msg("%s is %ld, the toolkit says %ld", list[i].name, list[i].ours, list[i].theirs);
}

/* A function of the toolkit fits our pointer when the parameters agree; enums there are ints here. */
static void parameters_are_the_toolkits(void **state)
{
    (void)state;
#define PARAMETERS(ours, theirs) assert_true(__builtin_types_compatible_p(__typeof__(theirs), __typeof__(ours)))
    PARAMETERS(CUresult(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long), cuMemAddressReserve);
    PARAMETERS(CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long), cuMemMap);
    PARAMETERS(CUresult(CUdeviceptr, size_t), cuMemUnmap);
    PARAMETERS(CUresult(void *, size_t, unsigned), cuMemHostRegister);
    PARAMETERS(CUresult(CUdeviceptr *, size_t, unsigned), cuMemAllocManaged);
#if CUDA_VERSION >= 13000 /* the header's names are of the second version from there on */
    PARAMETERS(CUresult(CUdeviceptr, size_t, CUmem_advise, CUmemLocation), cuMemAdvise);
    PARAMETERS(CUresult(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream), cuMemPrefetchAsync);
    PARAMETERS(CUresult(CUdeviceptr *, size_t *, size_t, CUmemLocation *, size_t *, size_t, unsigned long long, CUstream),
               cuMemDiscardAndPrefetchBatchAsync);
#else
    PARAMETERS(CUresult(CUdeviceptr, size_t, CUmem_advise, CUdevice), cuMemAdvise);
    PARAMETERS(CUresult(CUdeviceptr, size_t, CUdevice, CUstream), cuMemPrefetchAsync);
#endif
    PARAMETERS(CUresult(CUdeviceptr, const void *, size_t, CUstream), cuMemcpyHtoDAsync);
    PARAMETERS(CUresult(void *, CUdeviceptr, size_t, CUstream), cuMemcpyDtoHAsync);
    PARAMETERS(CUresult(CUdeviceptr, unsigned char, size_t, CUstream), cuMemsetD8Async);
    PARAMETERS(CUresult(CUstream, CUevent, unsigned), cuStreamWaitEvent);
    PARAMETERS(CUresult(CUstream, CUhostFn, void *), cuLaunchHostFunc);
    PARAMETERS(CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **), cuLaunchKernel);
    PARAMETERS(CUresult(CUstream, CUstreamCaptureMode), cuStreamBeginCapture);
    PARAMETERS(CUresult(CUstream, CUgraph *), cuStreamEndCapture);
    PARAMETERS(CUresult(CUgraphExec *, CUgraph, unsigned long long), cuGraphInstantiateWithFlags);
    PARAMETERS(CUresult(CUgraphExec, CUstream), cuGraphUpload);
    PARAMETERS(CUresult(CUgraphExec, CUstream), cuGraphLaunch);
    PARAMETERS(CUresult(CUgraphExec), cuGraphExecDestroy);
    PARAMETERS(CUresult(CUgraph), cuGraphDestroy);
    PARAMETERS(CUresult(const CUlaunchConfig *, CUfunction, void **, void **), cuLaunchKernelEx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_the_toolkits),
                                       cmocka_unit_test(parameters_are_the_toolkits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    puts("skipped: no CUDA toolkit to compare with");
    return 77;
}
#endif
