/* cmd_doctor.c - what this machine and build can do; each problem with its remedy. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "app.h"

typedef struct findings { json_t *list; int problems; } findings;

static void find(void *list, const char *what, const char *remedy)
{
    findings *f = list;
    json_array_append_new(f->list, json_pack("{s:s, s:s}", "problem", what, "remedy", remedy));
    f->problems++;
}

static void look_at_limits(findings *f, const lt_device_info *d)
{
    struct rlimit r;
    char text[256], b[2][24];
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0 && r.rlim_cur != RLIM_INFINITY && r.rlim_cur < (64u << 20)) {
        snprintf(text, sizeof text, "this process may lock %s of memory: copies to a card will go through pageable memory, several times slower",
                 app_bytes(r.rlim_cur, b[0]));
        find(f, text, "raise it: ulimit -l unlimited, or memlock in /etc/security/limits.conf");
    }
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (d->host_visible && d->total_bytes < ram - ram / 50) {
        snprintf(text, sizeof text, "a container limit of %s is below this machine's %s of RAM", app_bytes(d->total_bytes, b[0]),
                 app_bytes(ram, b[1]));
        find(f, text, "the budget follows it; raise the container's memory limit for more");
    }
    if (strcmp(d->isa, "ref") == 0)
        find(f, "no vector instructions are used", "AVX2 and FMA make products tens of times faster; use a cpu of 2013 or later, without isa=ref");
}

static json_t *profile_json(const lt_profile *p)
{
    json_t *j = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "machine", p->machine, "read_rate", p->read_rate, "cached_rate",
                          p->cached_rate, "link_rate", p->link_rate, "mapped_rate", p->mapped_rate, "memory_rate", p->memory_rate, "attend_rate",
                          p->attend_rate, "launch_ns", p->launch_ns);
    json_t *dot = json_object(), *gemm = json_object();
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        if (p->dot_rate[t] > 0) {
            json_object_set_new(dot, lt_dtype_get((lt_dtype)t)->name, json_real(p->dot_rate[t]));
            json_object_set_new(gemm, lt_dtype_get((lt_dtype)t)->name, json_real(p->gemm_rate[t]));
        }
    json_object_set_new(j, "dot_rate", dot);
    json_object_set_new(j, "gemm_rate", gemm);
    return j;
}

static void print_text(const lt_device_info *d, const lt_profile *p, const char *gpu, const findings *f)
{
    char b[4][24];
    printf("lowtide    %s\n", lt_version());
    printf("device     %s\n", d->name);
    printf("memory     %s, %s free; memory: %s\n", app_bytes(d->total_bytes, b[0]), app_bytes(d->free_bytes, b[1]), d->memory_mode);
    printf("read       %.1f GB/s from files, %.1f from the page cache, %.1f from memory\n", p->read_rate / 1e9, p->cached_rate / 1e9,
           p->memory_rate / 1e9);
    if (p->link_rate > 0)
        printf("link       %.1f GB/s copied to the card", p->link_rate / 1e9);
    if (p->link_rate > 0 && p->mapped_rate > 0)
        printf(", %.1f read in place by kernels", p->mapped_rate / 1e9);
    printf(p->link_rate > 0 ? "\n" : "");
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        if (p->dot_rate[t] > 0)
            printf("products   %-7s one row %6.1f GB/s of weights, many rows %7.1f billion multiply-adds/s\n",
                   lt_dtype_get((lt_dtype)t)->name, p->dot_rate[t] / 1e9, p->gemm_rate[t] / 1e9);
    printf("archs     ");
    const char *name, *text;
    for (uint32_t i = 0; (name = lt_model_arch_at(i, &text)); i++)
        printf(" %s", name);
    printf("\ngpu        %s\n", gpu);
    size_t i;
    json_t *x;
    json_array_foreach(f->list, i, x)
        printf("problem    %s\n  remedy   %s\n", json_string_value(json_object_get(x, "problem")),
               json_string_value(json_object_get(x, "remedy")));
    if (!f->problems)
        printf("problems   none found\n");
}

int cmd_doctor(const opts *o)
{
    app a;
    lt_device_info d;
    findings f = {json_array(), 0};
    lt_status s = app_open(&a, o);
    if (s == LT_OK)
        s = app_open_device(&a);
    if (s == LT_OK)
        s = lt_profile_get(a.ctx, a.dev, o->v[OPT_profile].s, &a.profile, &a.err);
    int code = 0;
    if (s == LT_OK) {
        lt_device_get_info(a.dev, &d);
        look_at_limits(&f, &d);
        char gpu[512] = "this build has no GPU backend";
        (void)lt_device_probe(a.ctx, "cuda", gpu, sizeof gpu, find, &f);
        if (o->v[OPT_json].set)
            app_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:O}", "lowtide", lt_version(), "device", d.name, "memory_mode", d.memory_mode, "gpu", gpu, "isa", d.isa,
                                     "total_bytes", (json_int_t)d.total_bytes, "free_bytes", (json_int_t)d.free_bytes, "profile",
                                     profile_json(&a.profile), "problems", f.list));
        else
            print_text(&d, &a.profile, gpu, &f);
    } else {
        code = app_fail(&a);
    }
    json_decref(f.list);
    app_close(&a);
    return code;
}
