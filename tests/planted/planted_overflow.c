/* Reads one byte behind a heap block; the exit code is 0 where nobody looks. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    (void)argv;
    char *block = malloc((size_t)argc + 7);
    if (!block)
        return 1;
    memset(block, 0, (size_t)argc + 7);
    volatile char seen = block[argc + 7];
    (void)seen;
    free(block);
    return 0;
}
