/* A test that fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void wrong(void **state)
{
    (void)state;
    assert_int_equal(2 + 2, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
