#include "backend/cpu/ops.h"

#include <cpuid.h>
#include <string.h>

static const char *const isa_names[LT_CPU_ISA_COUNT] = {"ref", "avx2", "avx512"};

const char *lt__cpu_isa_name(lt_cpu_isa isa)
{
    return (unsigned)isa < LT_CPU_ISA_COUNT ? isa_names[isa] : "?";
}

bool lt__cpu_isa_from_name(const char *name, lt_cpu_isa *out)
{
    for (unsigned i = 0; i < LT_CPU_ISA_COUNT; i++)
        if (!strcmp(name, isa_names[i])) {
            *out = (lt_cpu_isa)i;
            return true;
        }
    return false;
}

/* clang 14 does not know "f16c" by name. The AVX2 bit, asked first, says that the system saves
 * the registers. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

/* Each set names exactly what CMakeLists.txt lets the compiler use in its files. */
bool lt__cpu_isa_supported(lt_cpu_isa isa)
{
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    switch (isa) {
    case LT_CPU_ISA_REF:
        return true;
    case LT_CPU_ISA_AVX2:
        return avx2;
    case LT_CPU_ISA_AVX512:
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    case LT_CPU_ISA_COUNT:
        break;
    }
    return false;
}

lt_cpu_isa lt__cpu_isa_best(void)
{
    for (int i = LT_CPU_ISA_COUNT - 1; i > LT_CPU_ISA_REF; i--)
        if (lt__cpu_isa_supported((lt_cpu_isa)i))
            return (lt_cpu_isa)i;
    return LT_CPU_ISA_REF;
}

const lt_cpu_row *lt__cpu_rows(lt_cpu_isa isa, size_t *n)
{
    switch (isa) {
    case LT_CPU_ISA_REF:
        *n = lt__cpu_rows_ref_n;
        return lt__cpu_rows_ref;
    case LT_CPU_ISA_AVX2:
        *n = lt__cpu_rows_avx2_n;
        return lt__cpu_rows_avx2;
    case LT_CPU_ISA_AVX512:
        *n = lt__cpu_rows_avx512_n;
        return lt__cpu_rows_avx512;
    case LT_CPU_ISA_COUNT:
        break;
    }
    *n = 0;
    return NULL;
}

const lt_cpu_row *lt__cpu_find(lt_cpu_isa isa, const lt_op_args *args)
{
    for (int i = isa; i >= LT_CPU_ISA_REF; i--) {
        size_t n;
        const lt_cpu_row *rows = lt__cpu_rows((lt_cpu_isa)i, &n);
        for (size_t k = 0; k < n; k++)
            if (rows[k].op == args->op && (!rows[k].accepts || rows[k].accepts(args)))
                return &rows[k];
    }
    return NULL;
}
