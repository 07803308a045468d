/* session_impl.h - the inside of a session, shared by session.c and rebudget.c. */
#ifndef LT_RUN_SESSION_IMPL_H
#define LT_RUN_SESSION_IMPL_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "lowtide/session.h"
#include "lowtide/store.h"
#include "models/arch.h"
#include "run/giving.h"
#include "run/nvtx.h"
#include "run/share_impl.h"
#include "run/watch.h"

/* Reads a weight that is kept as f32 whatever the file holds. */
typedef struct lt__converted { struct lt_session *s; const lt_weight *w; } lt__converted;

/* Whole pages, pinned where the device gains by it. */
typedef struct lt__host_area { void *block; uint8_t *at; size_t bytes; bool pinned; } lt__host_area;

/* Host side of inputs and outputs, for a plan's batch and rows; inputs of a pass as they lie on the device. */
typedef struct lt__host_io {
    lt__host_area inputs, outputs;
    float   *logits;
    int32_t *table[2];
    size_t   table_bytes[2];
} lt__host_io;

/* KV pages of each group, on the host while there is no arena to hold them. */
typedef struct lt__saved_kv {
    void    *block; /* as allocated; NULL: nothing is saved */
    uint8_t *at;    /* group 0's pages, then group 1's */
    size_t   block_bytes, bytes;
    bool     pinned;
    uint32_t first[2], n[2]; /* pages counted from position 0 */
} lt__saved_kv;

struct lt_session {
    lt_ctx          *ctx;
    const lt_model  *model;
    const lt_plan   *first;  /* the caller's */
    lt_plan         *own;    /* made for another budget; NULL: none */
    const lt_plan   *plan;   /* at work: one of these */
    lt_device       *dev;
    lt_session_desc  desc;
    lt_store        *store;
    bool             store_direct;
    uint32_t        *files; uint32_t n_files; /* store's index of each part of the model */
    lt_source       *sources;
    lt__converted   *converted;
    lt__pins         pins;
    const lt_plan   *making; /* of the engine being made */
    lt__engine      *engine; /* NULL only after a change of budget failed; the next pass tries again */
    atomic_bool      cancel;
    uint32_t         length;  /* positions whose KV is right */
    uint32_t         deepest; /* positions ever written: what windowed groups have overwritten */
    uint32_t         oldest[2]; /* first page of a windowed group that a change of budget kept */

    lt__host_io      io;
    float           *next_rope; size_t next_rope_bytes; /* of all sets at position next_pos, made while the device worked */
    int32_t          next_pos;
    uint8_t         *row_buf; size_t row_bytes;
    lt_tid           t_embd, t_pos, t_table[2], t_rope[2], t_rows, t_logits, t_kv[2];

    lt_phase prefill, decode;
    double   prefill_floor, decode_floor, load_seconds;
    uint64_t in_after_load, in_first_pass;
    bool     first_done;

    /* Budget: what was changed, and when to change it. */
    bool             watching, virtual_clock;
    lt__giving       giving;
    uint64_t         next_look_ns, missed, budget_most;
    uint64_t         free_seen; /* of the device, at the last look */
    lt__saved_kv     saved;
    lt_residency_stats past; /* of engines that are gone */
    uint64_t         past_mapped;
    lt_pool_stats    last_pool;
    uint64_t         store_past_bytes;
    lt_budget_change *changes; size_t n_changes, cap_changes;
    lt_phase         since; /* decode since the last change */
    double           change_seconds;

    lt__nvtx         nvtx;
    lt__watcher     *watcher; /* NULL: not published */
    lt_watch         page;
    const lt_plan   *drawn;   /* whose places page.map shows */
    uint64_t         next_publish_ns;
};

/* session.c */
LT_NODISCARD lt_status lt__session_open_store(lt_session *s, bool direct, lt_err *err); /* replaces the one before */
LT_NODISCARD lt_status lt__session_alloc_io(lt_session *s, const lt_plan *p, lt__host_io *io, lt_err *err);
void lt__session_free_io(lt_session *s, lt__host_io *io);
LT_NODISCARD lt_status lt__session_find_tensors(lt_session *s, lt_err *err);
LT_NODISCARD lt_status lt__session_make_engine(lt_session *s, const lt_plan *p, bool quiet, lt_err *err);
void lt__session_residency_stats(const lt_session *s, lt_residency_stats *out); /* of all engines so far */

/* rebudget.c */
void lt__session_published(void *session); /* the arena of `making` is there */
void lt__session_watch(lt_session *s); /* at create: whether and for what */
/* At create. Where the device gives less than it said was free, plans for less are tried, down to the smallest. */
LT_NODISCARD lt_status lt__session_first_engine(lt_session *s, lt_err *err);
/* Before each pass: an engine is there, and the reserve is held as far as it can be. */
LT_NODISCARD lt_status lt__session_before_pass(lt_session *s, lt_err *err);
void lt__session_drop_saved(lt_session *s);

/* publish.c: nothing where the session is not published; at most ten times a second unless at_once. */
void lt__session_open_page(lt_session *s);
void lt__session_publish(lt_session *s, const char *phase, bool at_once);

/* Where the rows of a pass of n tokens go; rope: by set, NULL where the graph takes none. */
typedef struct lt__rows { const int32_t *ids; uint32_t n; int32_t *pos; float *embd, *rope[2]; } lt__rows;
lt_status lt__session_fill_rows(lt_session *s, const lt__rows *rows, lt_err *err); /* inputs.c */

#endif
