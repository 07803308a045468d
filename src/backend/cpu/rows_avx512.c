#include "backend/cpu/ops.h"

/* No rows yet; C has no empty arrays. */
const lt_cpu_row lt__cpu_rows_avx512[1] = {{.run = NULL}};
const size_t lt__cpu_rows_avx512_n = 0;
