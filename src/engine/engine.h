/* engine.h - runs a plan's graph: leases, launches, inputs and outputs.
 *
 * The engine owns the arena (one pool, committed whole), the residency manager and one compute
 * queue. It walks the nodes in order and runs far ahead of the device; copies of streamed slices are
 * the residency manager's, ahead of the launches. */
#ifndef LT_ENGINE_H
#define LT_ENGINE_H

#include <stdatomic.h>

#include "graph/graph.h"
#include "lowtide/residency.h"
#include "memory/pins.h"
#include "plan/plan_internal.h"

typedef struct lt__engine lt__engine;

typedef struct lt__engine_desc {
    lt_device       *dev;
    const lt_plan   *plan;
    const lt_source *sources;  /* of whole weights, by weight index; a slice adds its offset */
    const atomic_bool *cancel; /* looked at before each launch; may be NULL */
    lt_trace        *trace;
    void           (*arena)(void *user); /* called when the arena's memory is there, before anything is loaded; may be NULL */
    void            *arena_user;
    lt__pins        *pins;     /* of the files' mappings, outlive the engine; NULL: its own */
    void           (*progress)(void *user, const char *what, uint64_t done, uint64_t total);
    void            *progress_user;
} lt__engine_desc;

/* Allocates the arena and loads what the plan keeps resident. */
LT_NODISCARD lt_status lt__engine_create(lt_ctx *ctx, const lt__engine_desc *desc, lt__engine **out, lt_err *err);
void lt__engine_destroy(lt__engine *e);

/* Inputs and outputs are found by role and group; LT_NO_TENSOR when the graph has none. */
lt_tid lt__engine_find(const lt__engine *e, lt_role role, uint32_t group);
/* Enqueues a copy; `data` must live until the next sync. An input of fixed length. */
LT_NODISCARD lt_status lt__engine_write(lt__engine *e, lt_tid t, const void *data, uint64_t bytes, lt_err *err);
/* Inputs that are as long as the pass lie behind each other, where the pass's tokens and rows put them (those of
 * lt__engine_run); of LT_NO_TENSOR: their end. One write may fill several. */
uint64_t lt__engine_input_offset(const lt__engine *e, lt_tid t, uint32_t tokens, uint32_t rows);
LT_NODISCARD lt_status lt__engine_write_inputs(lt__engine *e, uint64_t offset, const void *data, uint64_t bytes, lt_err *err);
LT_NODISCARD lt_status lt__engine_read(lt__engine *e, lt_tid t, void *data, uint64_t bytes, lt_err *err);
/* Of a tensor of state (LT_ROLE_KV), from `offset` on. */
LT_NODISCARD lt_status
lt__engine_save(lt__engine *e, lt_tid t, uint64_t offset, void *data, uint64_t bytes, lt_err *err);
LT_NODISCARD lt_status
lt__engine_restore(lt__engine *e, lt_tid t, uint64_t offset, const void *data, uint64_t bytes, lt_err *err);
LT_NODISCARD lt_status lt__engine_sync(lt__engine *e, lt_err *err);

typedef enum lt__part { LT__PART_BODY = 1, LT__PART_HEAD = 2, LT__PART_ALL = 3 } lt__part;
/* Declares which parts the coming passes run, again and again, and whether they are a prompt's, so that prefetch is right. */
LT_NODISCARD lt_status lt__engine_expect(lt__engine *e, lt__part parts, bool prefill, lt_err *err);
/* Of weights that passes of one token have read in place. */
uint64_t lt__engine_mapped_bytes(const lt__engine *e);
/* Enqueues the nodes of the parts. `prefill`: the tokens are of a prompt (lt_op_args). With `check`, syncs after every node and names the first whose
 * output is not finite. */
LT_NODISCARD lt_status
lt__engine_run(lt__engine *e, lt__part parts, uint32_t tokens, uint32_t rows, bool prefill, bool check, lt_err *err);

/* Most scratch a launch of the graph wants, of a prompt or of one token, on lt_device *dev; for lt__plan_input. */
uint64_t lt__engine_scratch(void *dev, const lt_graph *g, uint32_t tokens, uint32_t rows);
/* E_UNSUPPORTED names the first node that the device refuses, of a prompt or of one token, and why. */
LT_NODISCARD lt_status lt__engine_supports(lt_device *dev, const lt_graph *g, lt_err *err);
/* Loads the kernels of the graph, so that the device's fixed_bytes counts them. */
LT_NODISCARD lt_status lt__engine_prepare(lt_device *dev, const lt_graph *g, lt_err *err);

lt_pool *lt__engine_pool(lt__engine *e);
lt_residency *lt__engine_residency(lt__engine *e);

#endif
