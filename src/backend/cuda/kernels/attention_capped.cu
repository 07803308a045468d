/* attention_capped.cu - attention.cu with soft caps and sinks. */
#define LT_CAPPED
#include "attention.cu"
