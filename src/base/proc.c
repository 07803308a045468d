#include "base/proc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define BEAT_LOST_NS (UINT64_C(5) * 1000000000)

/* Field 22 of /proc/PID/stat, in ticks since boot; 0 when there is no such process. The name before
 * it may hold anything, also ')': fields are counted from the last one. */
static uint64_t start_of(uint32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')');
    unsigned long long start = 0;
    char state = 'Z';
    if (!p || sscanf(p, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start; /* what a zombie held is given back already */
}

static uint32_t own_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

lt__proc lt__proc_self(void)
{
    uint32_t pid = (uint32_t)getpid();
    return (lt__proc){.pid = pid, .space = own_space(), .start = start_of(pid)};
}

bool lt__proc_alive(const lt__proc *p, uint64_t beat_ns)
{
    if (!p->pid)
        return false;
    if (p->space != own_space())
        return !beat_ns || lt__now_ns() < beat_ns + BEAT_LOST_NS;
    if (kill((pid_t)p->pid, 0) != 0 && errno == ESRCH)
        return false;
    return start_of(p->pid) == p->start;
}
