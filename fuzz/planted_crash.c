/* Crashes on any input that begins with three chosen bytes: a fuzzer that works finds them at once. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 3 && data[0] == 'l' && data[1] == 'o' && data[2] == 'w')
        abort();
    return 0;
}
