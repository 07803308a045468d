/* flash_capped.cu - flash.cu with soft caps and sinks. */
#define LT_CAPPED
#include "flash.cu"
