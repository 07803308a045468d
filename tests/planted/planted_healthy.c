/* The control: with this alone the scripts must be green, so that red means the planted bug. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void healthy(void **state)
{
    (void)state;
    assert_int_equal(2 + 2, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(healthy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
