/* nvtx.h - ranges that NVIDIA's profilers show, where their library is there; nothing is linked. */
#ifndef LT_RUN_NVTX_H
#define LT_RUN_NVTX_H

#include "lowtide/base.h"

typedef struct lt__nvtx { void *library; int (*push)(const char *text); int (*pop)(void); } lt__nvtx; /* library NULL: off */

void lt__nvtx_open(lt__nvtx *n);
void lt__nvtx_close(lt__nvtx *n);
static inline void lt__nvtx_push(const lt__nvtx *n, const char *text)
{
    if (n->library) (void)n->push(text);
}
static inline void lt__nvtx_pop(const lt__nvtx *n)
{
    if (n->library) (void)n->pop();
}

#endif
