/* flash_capped_sm90a.cu - flash_sm90a.cu with soft caps and sinks. */
#define LT_CAPPED
#include "flash_sm90a.cu"
