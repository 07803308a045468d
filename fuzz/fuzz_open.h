/* fuzz_open.h - opens bytes as a model file and reads all that it shows. */
#ifndef LT_FUZZ_OPEN_H
#define LT_FUZZ_OPEN_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lowtide/modelfile.h"

static uint64_t read_key(const lt_key *k)
{
    uint64_t sum = strlen(k->name);
    for (uint64_t i = 0; i < k->n; i++) switch (k->elem_type) {
        case LT_KEY_BOOL: sum += k->v.b[i]; break;
        case LT_KEY_STRING:
            if (k->v.s[i][k->s_len[i]] != 0) __builtin_trap();
            for (uint32_t c = 0; c < k->s_len[i]; c++) sum += (unsigned char)k->v.s[i][c];
            break;
        default: sum += k->v.u[i]; break;
        }
    return sum;
}

static uint64_t read_model(const lt_modelfile *f, size_t size)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < lt_modelfile_key_count(f); i++) {
        const lt_key *k = lt_modelfile_key_at(f, i);
        if (lt_modelfile_key(f, k->name) != k) __builtin_trap();
        sum += read_key(k);
    }
    for (uint64_t i = 0; i < lt_modelfile_tensor_count(f); i++) {
        const lt_tensor_info *t = lt_modelfile_tensor_at(f, i);
        uint64_t elems = 1, row;
        if (lt_modelfile_tensor(f, t->name) != t || t->offset > size || t->bytes > size - t->offset) __builtin_trap();
        if (t->ndim < 1 || t->ndim > 4) __builtin_trap();
        for (uint32_t d = 0; d < t->ndim; d++) elems *= t->dim[d];
        if (t->dtype != LT_DTYPE_COUNT &&
            (!lt_dtype_row_bytes(t->dtype, t->dim[t->ndim - 1], &row) || elems / t->dim[t->ndim - 1] * row != t->bytes))
            __builtin_trap();
        sum += strlen(t->type_name);
    }
    return sum;
}

/* The file lies in memory; `tail` makes its name end as the format's does. */
static int fuzz_open(const uint8_t *data, size_t n, const char *tail)
{
    volatile uint64_t sink = 0;
    char path[64], link[96];
    lt_ctx *ctx;
    lt_err err = {0};
    lt_modelfile *f = NULL;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, n) != (ssize_t)n || lt_ctx_create(NULL, &ctx, &err) != LT_OK) return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(link, sizeof link, "/tmp/lt_fuzz_%d%s", (int)getpid(), tail);
    if (*tail && symlink(path, link) != 0) link[0] = 0;
    if (lt_modelfile_open(ctx, *tail && link[0] ? link : path, &f, &err) == LT_OK) sink = read_model(f, n);
    else if (!err.text[0]) __builtin_trap();
    (void)sink;
    lt_modelfile_close(f);
    if (lt_ctx_host_bytes(ctx) != 0) __builtin_trap();
    if (lt_ctx_host_peak_bytes(ctx) > 16 * n + (1 << 20)) __builtin_trap();
    lt_ctx_destroy(ctx);
    if (*tail && link[0]) unlink(link);
    close(fd);
    return 0;
}

#endif
