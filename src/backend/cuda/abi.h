/* abi.h - the part of the CUDA driver's and NVML's binary interface that is used here.
 *
 * Written against the documented interface, so that building needs no toolkit and running no
 * library at link time. Handles have the toolkit's names and types: both headers can be seen by
 * one file, and tests/unit/test_cuda_abi.c compares them where a toolkit is installed. */
#ifndef LT_CUDA_ABI_H
#define LT_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

typedef int lt_curesult; /* an enum there: int on every platform of ours */
typedef unsigned long long lt_cumemhandle;

enum {
    LT_CU_OK = 0,
    LT_CU_INVALID_VALUE = 1,
    LT_CU_OUT_OF_MEMORY = 2,
    LT_CU_NOT_INITIALIZED = 3,
    LT_CU_DEINITIALIZED = 4,
    LT_CU_STUB_LIBRARY = 34,
    LT_CU_NO_DEVICE = 100,
    LT_CU_INVALID_DEVICE = 101,
    LT_CU_INVALID_CONTEXT = 201,
    LT_CU_NO_BINARY_FOR_GPU = 209,
    LT_CU_ECC_UNCORRECTABLE = 214,
    LT_CU_UNSUPPORTED_PTX_VERSION = 222,
    LT_CU_INVALID_HANDLE = 400,
    LT_CU_NOT_FOUND = 500,
    LT_CU_NOT_READY = 600,
    LT_CU_ILLEGAL_ADDRESS = 700,
    LT_CU_LAUNCH_OUT_OF_RESOURCES = 701,
    LT_CU_LAUNCH_TIMEOUT = 702,
    LT_CU_CONTEXT_IS_DESTROYED = 709,
    LT_CU_ASSERT = 710,
    LT_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
    LT_CU_HARDWARE_STACK_ERROR = 714,
    LT_CU_LAUNCH_FAILED = 719,
    LT_CU_NOT_PERMITTED = 800,
    LT_CU_NOT_SUPPORTED = 801,
    LT_CU_SYSTEM_DRIVER_MISMATCH = 803,
    LT_CU_UNKNOWN = 999
};

enum {
    LT_CU_ATTR_SHARED_PER_BLOCK = 8,
    LT_CU_ATTR_SM_COUNT = 16,
    LT_CU_ATTR_INTEGRATED = 18,
    LT_CU_ATTR_MAPS_HOST = 19,
    LT_CU_ATTR_PCI_BUS = 33,
    LT_CU_ATTR_PCI_DEVICE = 34,
    LT_CU_ATTR_L2_BYTES = 38,
    LT_CU_ATTR_COPY_ENGINES = 40,
    LT_CU_ATTR_UNIFIED_ADDRESSING = 41,
    LT_CU_ATTR_PCI_DOMAIN = 50,
    LT_CU_ATTR_CC_MAJOR = 75,
    LT_CU_ATTR_CC_MINOR = 76,
    LT_CU_ATTR_MANAGED = 83,
    LT_CU_ATTR_CONCURRENT_MANAGED = 89,
    LT_CU_ATTR_SHARED_PER_BLOCK_OPTIN = 97,
    LT_CU_ATTR_HOST_REGISTER = 99,
    LT_CU_ATTR_VMM = 102,
    LT_CU_ATTR_READ_ONLY_HOST_REGISTER = 113
};

enum { LT_CU_STREAM_NON_BLOCKING = 1 };
enum { LT_CU_EVENT_DEFAULT = 0, LT_CU_EVENT_DISABLE_TIMING = 2 };
enum { LT_CU_HOST_REGISTER_PORTABLE = 1, LT_CU_HOST_REGISTER_DEVICEMAP = 2, LT_CU_HOST_REGISTER_READ_ONLY = 8 };
enum { LT_CU_FUNC_STATIC_SHARED = 1, LT_CU_FUNC_MAX_DYNAMIC_SHARED = 8 };
enum { LT_CU_MEM_PINNED = 1, LT_CU_MEM_LOCATION_DEVICE = 1, LT_CU_MEM_READWRITE = 3, LT_CU_GRANULARITY_MINIMUM = 0 };
enum { LT_CU_MEM_LOCATION_HOST = 2, LT_CU_MEM_ATTACH_GLOBAL = 1 };
/* Of cuMemAdvise. Its first version, as cuMemPrefetchAsync's, names a place by a device, the host by -1. */
enum { LT_CU_ADVISE_PREFER = 3, LT_CU_ADVISE_UNPREFER = 4, LT_CU_ADVISE_ACCESSED = 5, LT_CU_ADVISE_UNACCESSED = 6, LT_CU_DEVICE_CPU = -1 };

typedef struct lt_cumemlocation { int type, id; } lt_cumemlocation;
typedef struct lt_cumemprop {
    int              type, handle_types;
    lt_cumemlocation location;
    void            *windows_only;
    struct {
        unsigned char  compression, rdma;
        unsigned short usage;
        unsigned char  reserved[4];
    } flags;
} lt_cumemprop;
typedef struct lt_cumemaccess { lt_cumemlocation location; int flags; } lt_cumemaccess;

enum { LT_CU_CAPTURE_RELAXED = 2 };

typedef struct lt_culaunchattr {
    int  id, pad;
    union { char room[64]; int flag; } value;
} lt_culaunchattr;
typedef struct lt_culaunch {
    unsigned         grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream         stream;
    lt_culaunchattr *attrs;
    unsigned         n_attrs;
} lt_culaunch;
enum { LT_CU_LAUNCH_EARLY = 6 }; /* programmatic stream serialization */

typedef void lt_cuhostfn(void *user);

/* X(member, symbol, required, parameters). The symbol is the version whose parameters these are. */
/* Of cuTensorMapEncodeTiled. */
enum { LT_CU_TENSOR_HALF = 6, LT_CU_TENSOR_PLAIN = 0, LT_CU_TENSOR_SWIZZLE_128 = 3, LT_CU_TENSOR_L2_256 = 3, LT_CU_TENSOR_ZEROS = 0 };

#define LT_CU_FUNCTIONS(X)                                                                                             \
    X(init, "cuInit", 1, (unsigned flags))                                                                             \
    X(driver_version, "cuDriverGetVersion", 1, (int *version))                                                         \
    X(error_name, "cuGetErrorName", 1, (lt_curesult error, const char **text))                                         \
    X(error_string, "cuGetErrorString", 1, (lt_curesult error, const char **text))                                     \
    X(device_count, "cuDeviceGetCount", 1, (int *count))                                                               \
    X(device_get, "cuDeviceGet", 1, (CUdevice *device, int ordinal))                                                   \
    X(device_name, "cuDeviceGetName", 1, (char *name, int bytes, CUdevice device))                                     \
    X(device_uuid, "cuDeviceGetUuid_v2", 0, (void *bytes16, CUdevice device))                                          \
    X(device_attribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, CUdevice device))                       \
    X(device_memory, "cuDeviceTotalMem_v2", 1, (size_t *bytes, CUdevice device))                                       \
    X(context_retain, "cuDevicePrimaryCtxRetain", 1, (CUcontext *context, CUdevice device))                            \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", 1, (CUdevice device))                                           \
    X(context_push, "cuCtxPushCurrent_v2", 1, (CUcontext context))                                                     \
    X(context_pop, "cuCtxPopCurrent_v2", 1, (CUcontext *context))                                                      \
    X(memory_info, "cuMemGetInfo_v2", 1, (size_t *free, size_t *total))                                                \
    X(mem_alloc, "cuMemAlloc_v2", 1, (CUdeviceptr *out, size_t bytes))                                                 \
    X(mem_free, "cuMemFree_v2", 1, (CUdeviceptr ptr))                                                                  \
    X(mem_managed, "cuMemAllocManaged", 0, (CUdeviceptr *out, size_t bytes, unsigned flags))                           \
    X(mem_advise_v1, "cuMemAdvise", 0, (CUdeviceptr ptr, size_t bytes, int advice, CUdevice device))                   \
    X(mem_advise, "cuMemAdvise_v2", 0, (CUdeviceptr ptr, size_t bytes, int advice, lt_cumemlocation where))            \
    X(mem_prefetch_v1, "cuMemPrefetchAsync", 0, (CUdeviceptr ptr, size_t bytes, CUdevice device, CUstream stream))     \
    X(mem_prefetch, "cuMemPrefetchAsync_v2", 0,                                                                        \
      (CUdeviceptr ptr, size_t bytes, lt_cumemlocation where, unsigned flags, CUstream stream))                        \
    X(mem_discard_prefetch, "cuMemDiscardAndPrefetchBatchAsync", 0,                                                    \
      (CUdeviceptr *ptrs, size_t *bytes, size_t count, lt_cumemlocation *where, size_t *first, size_t n_where,         \
       unsigned long long flags, CUstream stream))                                                                     \
    X(mem_granularity, "cuMemGetAllocationGranularity", 0, (size_t *bytes, const lt_cumemprop *prop, int option))      \
    X(mem_reserve, "cuMemAddressReserve", 0,                                                                           \
      (CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags))                \
    X(mem_unreserve, "cuMemAddressFree", 0, (CUdeviceptr ptr, size_t bytes))                                           \
    X(mem_create, "cuMemCreate", 0,                                                                                    \
      (lt_cumemhandle *out, size_t bytes, const lt_cumemprop *prop, unsigned long long flags))                         \
    X(mem_release, "cuMemRelease", 0, (lt_cumemhandle handle))                                                         \
    X(mem_map, "cuMemMap", 0,                                                                                          \
      (CUdeviceptr ptr, size_t bytes, size_t offset, lt_cumemhandle handle, unsigned long long flags))                 \
    X(mem_unmap, "cuMemUnmap", 0, (CUdeviceptr ptr, size_t bytes))                                                     \
    X(mem_access, "cuMemSetAccess", 0, (CUdeviceptr ptr, size_t bytes, const lt_cumemaccess *desc, size_t count))      \
    X(host_register, "cuMemHostRegister_v2", 1, (void *ptr, size_t bytes, unsigned flags))                             \
    X(host_pointer, "cuMemHostGetDevicePointer_v2", 0, (CUdeviceptr *out, void *host, unsigned flags))                  \
    X(host_unregister, "cuMemHostUnregister", 1, (void *ptr))                                                          \
    X(copy_in, "cuMemcpyHtoDAsync_v2", 1, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))           \
    X(copy_out, "cuMemcpyDtoHAsync_v2", 1, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))                \
    X(copy, "cuMemcpyDtoDAsync_v2", 1, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))              \
    X(fill, "cuMemsetD8Async", 1, (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream))               \
    X(stream_create, "cuStreamCreate", 1, (CUstream *out, unsigned flags))                                             \
    X(stream_destroy, "cuStreamDestroy_v2", 1, (CUstream stream))                                                      \
    X(stream_sync, "cuStreamSynchronize", 1, (CUstream stream))                                                        \
    X(stream_wait, "cuStreamWaitEvent", 1, (CUstream stream, CUevent event, unsigned flags))                           \
    X(event_create, "cuEventCreate", 1, (CUevent *out, unsigned flags))                                                \
    X(event_destroy, "cuEventDestroy_v2", 1, (CUevent event))                                                          \
    X(event_record, "cuEventRecord", 1, (CUevent event, CUstream stream))                                              \
    X(event_query, "cuEventQuery", 1, (CUevent event))                                                                 \
    X(event_sync, "cuEventSynchronize", 1, (CUevent event))                                                            \
    X(event_elapsed, "cuEventElapsedTime", 1, (float *ms, CUevent start, CUevent end))                                 \
    X(host_call, "cuLaunchHostFunc", 1, (CUstream stream, lt_cuhostfn *fn, void *user))                                \
    X(module_load, "cuModuleLoadData", 1, (CUmodule *out, const void *image))                                          \
    X(module_unload, "cuModuleUnload", 1, (CUmodule module))                                                           \
    X(module_function, "cuModuleGetFunction", 1, (CUfunction *out, CUmodule module, const char *name))                 \
    X(module_count, "cuModuleGetFunctionCount", 0, (unsigned *count, CUmodule module))                                 \
    X(module_functions, "cuModuleEnumerateFunctions", 0, (CUfunction *out, unsigned count, CUmodule module))           \
    X(function_load, "cuFuncLoad", 0, (CUfunction function))                                                           \
    X(function_get, "cuFuncGetAttribute", 1, (int *value, int attribute, CUfunction function))                         \
    X(function_set, "cuFuncSetAttribute", 1, (CUfunction function, int attribute, int value))                          \
    X(tensor_encode, "cuTensorMapEncodeTiled", 0,                                                                      \
      (void *map, int type, unsigned rank, void *at, const uint64_t *dims, const uint64_t *strides, const unsigned *box, \
       const unsigned *steps, int interleave, int swizzle, int l2, int outside))                                       \
    X(launch, "cuLaunchKernel", 1,                                                                                     \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **params, void **extra))                          \
    X(launch_ex, "cuLaunchKernelEx", 0,                                                                                \
      (const lt_culaunch *config, CUfunction function, void **params, void **extra))                                   \
    X(capture_begin, "cuStreamBeginCapture_v2", 0, (CUstream stream, int mode))                                        \
    X(capture_end, "cuStreamEndCapture", 0, (CUstream stream, CUgraph *out))                                           \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 0,                                                             \
      (CUgraphExec *out, CUgraph graph, unsigned long long flags))                                                     \
    X(graph_upload, "cuGraphUpload", 0, (CUgraphExec graph, CUstream stream))                                          \
    X(graph_launch, "cuGraphLaunch", 0, (CUgraphExec graph, CUstream stream))                                          \
    X(graph_exec_destroy, "cuGraphExecDestroy", 0, (CUgraphExec graph))                                                \
    X(graph_destroy, "cuGraphDestroy", 0, (CUgraph graph))

/* NVML: what a process holds, as the driver sees it. */
typedef struct lt_nvmldevice_st *lt_nvmldevice;
typedef int lt_nvmlreturn; /* 0: success; 7: the buffer is too small */
typedef struct lt_nvmlmemory { unsigned long long total, free, used; } lt_nvmlmemory;
typedef struct lt_nvmlprocess {
    unsigned           pid;
    unsigned long long used;
    unsigned           gpu_instance, compute_instance;
} lt_nvmlprocess;

#define LT_NVML_FUNCTIONS(X)                                                                                           \
    X(init, "nvmlInit_v2", 1, (void))                                                                                  \
    X(shutdown, "nvmlShutdown", 1, (void))                                                                             \
    X(by_pci, "nvmlDeviceGetHandleByPciBusId_v2", 1, (const char *id, lt_nvmldevice *out))                             \
    X(memory, "nvmlDeviceGetMemoryInfo", 1, (lt_nvmldevice device, lt_nvmlmemory *out))                                \
    X(processes, "nvmlDeviceGetComputeRunningProcesses_v3", 0,                                                         \
      (lt_nvmldevice device, unsigned *count, lt_nvmlprocess *out))                                                    \
    X(driver, "nvmlSystemGetDriverVersion", 1, (char *text, unsigned bytes))                                           \
    X(link_gen, "nvmlDeviceGetCurrPcieLinkGeneration", 0, (lt_nvmldevice device, unsigned *out))                       \
    X(link_width, "nvmlDeviceGetCurrPcieLinkWidth", 0, (lt_nvmldevice device, unsigned *out))                          \
    X(best_gen, "nvmlDeviceGetMaxPcieLinkGeneration", 0, (lt_nvmldevice device, unsigned *out))                        \
    X(best_width, "nvmlDeviceGetMaxPcieLinkWidth", 0, (lt_nvmldevice device, unsigned *out))

#endif
