/* proc.h - which process wrote a record that several share, and whether it still lives.
 *
 * A pid alone is used again; with the time its process started it is not. Pids of another pid
 * namespace cannot be looked at from here: those are judged by how old their last sign of life is. */
#ifndef LT_BASE_PROC_H
#define LT_BASE_PROC_H

#include "lowtide/base.h"

typedef struct lt__proc { uint32_t pid, space; uint64_t start; } lt__proc; /* pid 0: nobody */

lt__proc lt__proc_self(void);
/* beat_ns: lt__now_ns of the process's last sign of life, for one of another namespace; 0: none, taken as alive. */
bool lt__proc_alive(const lt__proc *p, uint64_t beat_ns);
static inline bool lt__proc_same(const lt__proc *a, const lt__proc *b)
{
    return a->pid == b->pid && a->space == b->space && a->start == b->start;
}

#endif
