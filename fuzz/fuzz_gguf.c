/* Any bytes as a GGUF file: opened or refused; everything an opened one shows is then read. */
#include "fuzz_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_open(data, n, "");
}
