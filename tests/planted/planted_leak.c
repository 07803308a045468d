/* Loses a block. */
#include <stdlib.h>

static void *volatile kept;

int main(void)
{
    kept = malloc(1000);
    kept = NULL;
    return 0;
}
