/* takevram.c - a neighbour for tests: takes all but LEFT of what is free on a device, holds it for SECONDS, leaves.
 *
 *     takevram cuda:kernels=0 1G 6
 *
 * Says on stdout what it took, and after how long LEFT + RESERVE (optional) was free again: somebody made room. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "lowtide/device.h"

static int fail(const char *text)
{
    fprintf(stderr, "takevram: %s\n", text);
    return 1;
}

int main(int argc, char **argv)
{
    lt_ctx *ctx;
    lt_device *dev;
    lt_device_info info;
    lt_addr at;
    lt_err err;
    uint64_t left, wanted = 0;
    double seconds = argc > 3 ? atof(argv[3]) : 0;
    if (argc < 4 || argc > 5 || !lt__parse_bytes(argv[2], &left) || seconds <= 0 || (argc > 4 && !lt__parse_bytes(argv[4], &wanted)))
        return fail("usage: takevram DEVICE LEFT SECONDS [RESERVE]");
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK || lt_device_open(ctx, argv[1], &dev, &err) != LT_OK)
        return fail(err.text);
    lt_device_get_info(dev, &info);
    if (info.free_bytes <= left)
        return fail("no more is free than is to be left");
    uint64_t take = lt__round_down(info.free_bytes - left, info.commit_bytes), start = lt__now_ns(), end = start + (uint64_t)(seconds * 1e9);
    if (lt_device_reserve(dev, take, &at, &err) != LT_OK || lt_device_commit(dev, at, take, &err) != LT_OK)
        return fail(err.text);
    uint64_t taken = lt__now_ns(), room = 0;
    printf("took %.0f MiB of %.0f free in %.3f s\n", (double)take / 1048576, (double)info.free_bytes / 1048576, (double)(taken - start) * 1e-9);
    fflush(stdout); /* who waits for it reads a file */
    while (lt__now_ns() < end) {
        if (wanted && !room && lt_device_free_bytes(dev) >= wanted)
            room = lt__now_ns();
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (room)
        printf("%.0f MiB were free again %.3f s later\n", (double)wanted / 1048576, (double)(room - taken) * 1e-9);
    else if (wanted)
        printf("%.0f MiB were not free again\n", (double)wanted / 1048576);
    lt_device_unreserve(dev, at, take);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return wanted && !room ? 2 : 0;
}
