/* format_common.h - files made byte by byte, and a folder to put them in. */
#ifndef LT_TESTS_FORMAT_COMMON_H
#define LT_TESTS_FORMAT_COMMON_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "lowtide/modelfile.h"

typedef struct buf { uint8_t v[1 << 16]; size_t n; } buf;

static inline void b_raw(buf *b, const void *p, size_t n)
{
    assert_true(b->n + n <= sizeof b->v);
    memcpy(b->v + b->n, p, n);
    b->n += n;
}
static inline void b_u8(buf *b, uint8_t x) { b_raw(b, &x, 1); }
static inline void b_u32(buf *b, uint32_t x) { b_raw(b, &x, 4); }
static inline void b_u64(buf *b, uint64_t x) { b_raw(b, &x, 8); }
static inline void b_text(buf *b, const char *s) { b_raw(b, s, strlen(s)); }
static inline void b_str(buf *b, const char *s) { b_u64(b, strlen(s)), b_text(b, s); }
static inline void b_zeros(buf *b, size_t n)
{
    for (; n; n--) b_u8(b, 0);
}
static inline void b_pad(buf *b, size_t align)
{
    while (b->n % align) b_u8(b, 0);
}

/* ---- GGUF ---- */
static inline void g_head(buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    b_text(b, "GGUF"), b_u32(b, version), b_u64(b, tensors), b_u64(b, keys);
}
static inline void g_key(buf *b, const char *name, uint32_t type) { b_str(b, name), b_u32(b, type); }
static inline void g_key_u32(buf *b, const char *name, uint32_t v) { g_key(b, name, 4), b_u32(b, v); }
static inline void g_key_str(buf *b, const char *name, const char *v) { g_key(b, name, 8), b_str(b, v); }
static inline void g_key_array(buf *b, const char *name, uint32_t type, uint64_t n) { g_key(b, name, 9), b_u32(b, type), b_u64(b, n); }
/* Dimensions as the file has them: innermost first. */
static inline void g_tensor(buf *b, const char *name, uint32_t ndim, const uint64_t *dim, uint32_t type, uint64_t offset)
{
    b_str(b, name), b_u32(b, ndim);
    for (uint32_t i = 0; i < ndim; i++) b_u64(b, dim[i]);
    b_u32(b, type), b_u64(b, offset);
}
#define DIMS(...) (sizeof((uint64_t[]){__VA_ARGS__}) / 8), (const uint64_t[]){__VA_ARGS__}

/* ---- safetensors ---- */
static inline void s_file(buf *b, const char *header, size_t data)
{
    b_u64(b, strlen(header)), b_text(b, header), b_zeros(b, data);
}

/* ---- a folder of the test's own ---- */
static char test_dir[64];

static inline int make_dir(void **state)
{
    (void)state;
    snprintf(test_dir, sizeof test_dir, "/tmp/lt_format_XXXXXX");
    return mkdtemp(test_dir) ? 0 : -1;
}

static inline const char *test_path(const char *name)
{
    static char path[8][512]; /* several in one expression */
    static int next;
    char *p = path[next++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", test_dir, name);
    return p;
}

static inline void remove_tree(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[1024];
    while (d && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path) continue;
        if (unlink(path) != 0) remove_tree(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

static inline int drop_dir(void **state)
{
    (void)state;
    remove_tree(test_dir);
    return 0;
}

static inline void save(const char *name, const void *p, size_t n)
{
    FILE *f = fopen(test_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

#endif
