/* ledger.h - the file behind lt_share: fixed records, one a process, checked and swept by whoever looks.
 *
 * A record is written whole under the file's lock by its owner. A process killed inside leaves a record whose sum is
 * wrong or whose owner is dead: both read as empty. The lock is tried, never waited for longer than said. */
#ifndef LT_RUN_LEDGER_H
#define LT_RUN_LEDGER_H

#include "base/proc.h"

enum { LT__LEDGER_RECORDS = 62 };

typedef struct lt__ledger_record {
    lt__proc proc;
    uint32_t serial, unused; /* tells two of one process apart */
    uint64_t have;   /* held on the device now, fixed cost included; 0: nothing yet */
    uint64_t least;  /* cannot or will not go below this */
    uint64_t want;
    uint64_t claim;  /* is about to be committed: nobody else's */
    uint64_t ask;    /* waits for so much free memory; 0: does not wait */
    uint64_t beat_ns;
    char     label[40];
    uint64_t sum;    /* of all before it */
} lt__ledger_record;

typedef struct lt__ledger lt__ledger;
/* folder/id.ledger; a damaged file is begun anew. */
LT_NODISCARD lt_status lt__ledger_open(lt_ctx *ctx, const char *folder, const char *id, lt__ledger **out, lt_err *err);
void lt__ledger_close(lt__ledger *l); /* takes the own record away; NULL is fine */
bool lt__ledger_lock(lt__ledger *l, uint64_t wait_ns);
void lt__ledger_unlock(lt__ledger *l);

/* With the lock held. The others' valid records; `sweep` also looks whether their owners live. */
uint32_t lt__ledger_others(lt__ledger *l, lt__ledger_record *out, bool sweep);
/* The own record: sum, owner and beat are filled in here. E_BUSY when the file is full. */
LT_NODISCARD lt_status lt__ledger_write(lt__ledger *l, const lt__ledger_record *r, lt_err *err);

/* A folder of this user for files that processes share, made when absent; the environment's LOWTIDE_SHARED_DIR,
 * else /dev/shm, $XDG_RUNTIME_DIR, /tmp. */
LT_NODISCARD lt_status lt__shared_folder(char *out, size_t bytes, lt_err *err);

#endif
