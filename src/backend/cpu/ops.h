/* ops.h - the CPU's op table: rows of functions, the readable ones and the fast ones.
 *
 * Used by the queues of `cpu` and `sim`. A row sees views whose addr is a host pointer
 * (lt_cpu_ptr) whatever the device, and a contract already checked by lt_op_check. */
#ifndef LT_CPU_OPS_H
#define LT_CPU_OPS_H

#include "backend/cpu/team.h"
#include "graph/op.h"

typedef enum lt_cpu_isa { LT_CPU_ISA_REF, LT_CPU_ISA_AVX2, LT_CPU_ISA_AVX512, LT_CPU_ISA_COUNT } lt_cpu_isa;

/* Runs on the queue's thread, which is rank 0 of the team. scratch: scratch_bytes of host
 * memory, aligned to 64, any content, as many as the row's scratch() asked for. */
typedef lt_status lt_cpu_fn(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err);

typedef struct lt_cpu_row {
    lt_op op;
    bool (*accepts)(const lt_op_args *args);                     /* NULL: anything the op's contract allows */
    lt_cpu_fn *run;
    size_t (*scratch)(const lt_op_args *args, uint32_t threads); /* NULL: none */
} lt_cpu_row;

static inline void *lt_cpu_ptr(lt_addr a) { return (void *)(uintptr_t)a; }

const char *lt__cpu_isa_name(lt_cpu_isa isa); /* "ref", "avx2", "avx512" */
bool lt__cpu_isa_from_name(const char *name, lt_cpu_isa *out);
bool lt__cpu_isa_supported(lt_cpu_isa isa); /* by this processor and its operating system */
lt_cpu_isa lt__cpu_isa_best(void);

/* The rows of one instruction set alone. The first that accepts wins. */
const lt_cpu_row *lt__cpu_rows(lt_cpu_isa isa, size_t *n);
/* Looks through the rows of isa, then of the lower ones, down to the reference. NULL: none. */
const lt_cpu_row *lt__cpu_find(lt_cpu_isa isa, const lt_op_args *args);

extern const lt_cpu_row lt__cpu_rows_ref[], lt__cpu_rows_avx2[], lt__cpu_rows_avx512[];
extern const size_t lt__cpu_rows_ref_n, lt__cpu_rows_avx2_n, lt__cpu_rows_avx512_n;

#endif
