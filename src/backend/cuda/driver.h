/* driver.h - libcuda and NVML, found at run time: one table of functions a device. */
#ifndef LT_CUDA_DRIVER_H
#define LT_CUDA_DRIVER_H

#include "backend/cuda/abi.h"
#include "base/mem.h"

typedef struct lt_cu {
    void *library;
    int   version; /* what the driver speaks: 13000 is CUDA 13.0 */
    bool  has_vmm; /* all of the functions of virtual memory management are there */
    bool  has_managed, has_graphs;
#define X(member, symbol, required, parameters) lt_curesult (*member) parameters;
    LT_CU_FUNCTIONS(X)
#undef X
} lt_cu;

typedef struct lt_nvml {
    void         *library; /* NULL: not there, which is no error */
    lt_nvmldevice device;
#define X(member, symbol, required, parameters) lt_nvmlreturn (*member) parameters;
    LT_NVML_FUNCTIONS(X)
#undef X
} lt_nvml;

/* path NULL: the system's. E_UNSUPPORTED with what is missing: the library, a function, a device. */
LT_NODISCARD lt_status lt__cu_open(lt_cu *cu, const char *path, lt_err *err);
void lt__cu_close(lt_cu *cu);

/* Why NVML can't tell is logged by the caller from `why`. pci: "0000:65:00.0". */
bool lt__nvml_open(lt_nvml *n, const char *path, const char *pci, char *why, size_t why_bytes);
void lt__nvml_close(lt_nvml *n);
bool lt__nvml_used(const lt_nvml *n, uint64_t *out);         /* of the whole device */
bool lt__nvml_process_used(const lt_nvml *n, uint64_t *out); /* of this process */

/* "the sentence: CUDA_ERROR_X (what the driver says)", with the status that fits. */
lt_status lt__cu_fail(const lt_cu *cu, lt_err *err, lt_curesult r, const char *fmt, ...) LT_PRINTF(4, 5);
/* Whether after this error nothing of the context works any more. */
bool lt__cu_fatal(lt_curesult r);

#endif
