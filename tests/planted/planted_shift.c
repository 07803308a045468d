/* Shifts by the width of the type. */
int main(int argc, char **argv)
{
    (void)argv;
    volatile unsigned width = 31 + (unsigned)argc;
    volatile unsigned seen = 1u << width;
    (void)seen;
    return 0;
}
