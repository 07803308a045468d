/* The ledger under what can happen to it: owners that die in the middle of a write, torn and foreign bytes, a full file. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "run/ledger.h"

static char folder[64];
static lt_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lt-ledger-XXXXXX");
    return !mkdtemp(folder) || lt_ctx_create(NULL, &ctx, NULL) != LT_OK;
}

static int teardown(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    int left = lt_ctx_host_bytes(ctx) != 0;
    lt_ctx_destroy(ctx);
    return system(cmd) != 0 || left;
}

static lt__ledger *open_one(const char *id)
{
    lt_err err;
    lt__ledger *l;
    if (lt__ledger_open(ctx, folder, id, &l, &err) != LT_OK)
        fail_msg("%s", err.text);
    return l;
}

static void write_one(lt__ledger *l, uint64_t have)
{
    lt__ledger_record r = {.have = have, .least = have / 2, .label = "m"};
    assert_true(lt__ledger_lock(l, 1000000000));
    assert_int_equal(lt__ledger_write(l, &r, NULL), LT_OK);
    lt__ledger_unlock(l);
}

static uint32_t others(lt__ledger *l, lt__ledger_record *out)
{
    assert_true(lt__ledger_lock(l, 1000000000));
    uint32_t n = lt__ledger_others(l, out, true);
    lt__ledger_unlock(l);
    return n;
}

static void each_sees_the_others(void **state)
{
    (void)state;
    lt__ledger_record r[LT__LEDGER_RECORDS];
    lt__ledger *a = open_one("x"), *b = open_one("x"), *c = open_one("y");
    write_one(a, 10);
    write_one(b, 20);
    assert_int_equal(others(a, r), 1);
    assert_int_equal(r[0].have, 20);
    assert_int_equal(others(b, r), 1);
    assert_int_equal(r[0].have, 10);
    assert_int_equal(others(c, r), 0);
    lt__ledger_close(a);
    assert_int_equal(others(b, r), 0);
    lt__ledger_close(b);
    lt__ledger_close(c);
}

/* Killed at a random moment of writing again and again, also with the lock held. */
static void killed_writers_leave_nothing(void **state)
{
    (void)state;
    lt__ledger_record r[LT__LEDGER_RECORDS];
    lt__ledger *watch = open_one("k");
    for (int round = 0; round < 60; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            lt__ledger *l;
            lt__ledger_record own = {.have = 1, .label = "child"};
            if (lt__ledger_open(ctx, folder, "k", &l, NULL) != LT_OK)
                _exit(1);
            for (;;) {
                if (!lt__ledger_lock(l, 1000000000) || lt__ledger_write(l, &own, NULL) != LT_OK)
                    _exit(1);
                own.have++;
                if (round % 2)
                    lt__ledger_unlock(l);
            }
        }
        usleep(2000 + (useconds_t)(round * 37 % 3000));
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(others(watch, r), 0);
    }
    write_one(watch, 5);
    lt__ledger *other = open_one("k");
    assert_int_equal(others(other, r), 1);
    lt__ledger_close(other);
    lt__ledger_close(watch);
}

static void foreign_bytes_are_no_records(void **state)
{
    (void)state;
    char path[128];
    lt__ledger_record r[LT__LEDGER_RECORDS];
    snprintf(path, sizeof path, "%s/z.ledger", folder);
    lt__ledger *a = open_one("z");
    srand(7);
    for (int round = 0; round < 50; round++) {
        write_one(a, 9);
        int fd = open(path, O_RDWR);
        uint8_t junk[200];
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (uint8_t)rand();
        off_t at = 16 + rand() % 7000;
        assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
        close(fd);
        assert_in_range(others(a, r), 0, 0);
        write_one(a, 9); /* its own record, damaged or not, is there again */
        lt__ledger *b = open_one("z");
        assert_int_equal(others(b, r), 1);
        assert_int_equal(r[0].have, 9);
        lt__ledger_close(b);
    }
    int fd = open(path, O_RDWR); /* the head too */
    assert_int_equal(pwrite(fd, "garbage garbage", 15, 0), 15);
    close(fd);
    lt__ledger *b = open_one("z");
    assert_int_equal(others(b, r), 0);
    write_one(b, 3);
    assert_int_equal(others(a, r), 1);
    lt__ledger_close(a);
    lt__ledger_close(b);
}

static void a_full_ledger_refuses_the_next(void **state)
{
    (void)state;
    lt__ledger *l[LT__LEDGER_RECORDS + 1];
    for (int i = 0; i < LT__LEDGER_RECORDS; i++) {
        l[i] = open_one("f");
        write_one(l[i], 1);
    }
    l[LT__LEDGER_RECORDS] = open_one("f");
    lt__ledger_record r = {.have = 1};
    lt_err err;
    assert_true(lt__ledger_lock(l[LT__LEDGER_RECORDS], 1000000000));
    assert_int_equal(lt__ledger_write(l[LT__LEDGER_RECORDS], &r, &err), LT_E_BUSY);
    lt__ledger_unlock(l[LT__LEDGER_RECORDS]);
    lt__ledger_close(l[0]);
    write_one(l[LT__LEDGER_RECORDS], 1);
    for (int i = 1; i <= LT__LEDGER_RECORDS; i++)
        lt__ledger_close(l[i]);
}

/* A process that holds the lock and does not go on costs others one look, not their run. */
static void the_lock_is_not_waited_for(void **state)
{
    (void)state;
    lt__ledger *a = open_one("w"), *b = open_one("w");
    assert_true(lt__ledger_lock(a, 0));
    uint64_t t0 = lt__now_ns();
    assert_false(lt__ledger_lock(b, 0));
    assert_false(lt__ledger_lock(b, 20000000));
    assert_true(lt__now_ns() - t0 < 5000000000ull);
    lt__ledger_unlock(a);
    assert_true(lt__ledger_lock(b, 0));
    lt__ledger_unlock(b);
    lt__ledger_close(a);
    lt__ledger_close(b);
}

static void a_process_is_told_from_another_of_its_number(void **state)
{
    (void)state;
    lt__proc me = lt__proc_self(), other = me;
    assert_true(lt__proc_alive(&me, 0));
    other.start--;
    assert_false(lt__proc_alive(&other, 0));
    other = me;
    other.space ^= 1; /* of a namespace that cannot be looked into: by its beat */
    assert_true(lt__proc_alive(&other, lt__now_ns()));
    assert_false(lt__proc_alive(&other, lt__now_ns() > 6000000000ull ? lt__now_ns() - 6000000000ull : 1));
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    usleep(50000); /* a zombie: dead, though its number is there */
    other = me;
    other.pid = (uint32_t)pid;
    assert_false(lt__proc_alive(&other, 0));
    waitpid(pid, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sees_the_others),
        cmocka_unit_test(killed_writers_leave_nothing),
        cmocka_unit_test(foreign_bytes_are_no_records),
        cmocka_unit_test(a_full_ledger_refuses_the_next),
        cmocka_unit_test(the_lock_is_not_waited_for),
        cmocka_unit_test(a_process_is_told_from_another_of_its_number),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
