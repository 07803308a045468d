#include "memory/pins.h"

#include "base/mem.h"
#include "memory/residency_impl.h"

#include <sys/mman.h>

/* A copy ends where a chunk does: large ones, but for a budget that has to choose. */
#define WHOLE_CHUNK (UINT64_C(256) << 20)

void lt__pins_init(lt__pins *p, lt_ctx *ctx, lt_device *dev, uint64_t most_bytes)
{
    *p = (lt__pins){.ctx = ctx, .dev = dev, .left = lt__pin_budget(dev, most_bytes), .whole_chunk = WHOLE_CHUNK,
                    .part_chunk = LT__PIN_PART_CHUNK};
}

static uint64_t chunk_bytes(const lt__pin *pin, size_t k) { return lt__min_u64(pin->chunk, pin->bytes - k * pin->chunk); }

void lt__pins_deinit(lt__pins *p)
{
    for (size_t i = 0; i < p->n; i++) {
        lt__pin *pin = &p->pin[i];
        for (size_t k = 0; k < pin->chunks; k++)
            if (pin->locked[k])
                lt_device_unpin(p->dev, pin->map + k * pin->chunk, (size_t)chunk_bytes(pin, k));
        lt__free(p->ctx, pin->locked, pin->chunks);
    }
    lt__free(p->ctx, p->pin, p->cap * sizeof *p->pin);
    *p = (lt__pins){0};
}

/* NULL: there is no memory to keep track of it, or nothing mapped. */
static lt__pin *pin_of(lt__pins *p, lt_store *store, uint32_t file)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->pin[i].store == store && p->pin[i].file == file)
            return &p->pin[i];
    lt__pin pin = {.store = store, .file = file};
    pin.map = (void *)lt__store_map_whole(store, file, &pin.bytes);
    if (!pin.bytes || lt__grow(p->ctx, (void **)&p->pin, &p->cap, p->n + 1, sizeof *p->pin, NULL) != LT_OK)
        return NULL;
    pin.whole = pin.bytes <= p->left;
    pin.chunk = pin.whole ? p->whole_chunk : p->part_chunk;
    pin.chunks = (size_t)((pin.bytes + pin.chunk - 1) / pin.chunk);
    pin.locked = lt__alloc_array(p->ctx, pin.chunks, 1);
    if (!pin.locked)
        return NULL;
    if (pin.whole) {
        p->left -= pin.bytes;
    } else if (p->left >= pin.chunk) {
        char a[32], b[32];
        lt__log(p->ctx, LT_LOG_WARN, "residency", "%s: only %s of its %s may be page-locked, copies from the rest are slower",
                lt_store_file_path(store, file), lt__format_bytes(p->left, a, sizeof a), lt__format_bytes(pin.bytes, b, sizeof b));
    }
    p->pin[p->n] = pin;
    return &p->pin[p->n++];
}

static void lock_chunk(lt__pins *p, lt__pin *pin, size_t k)
{
    uint64_t bytes = chunk_bytes(pin, k);
    if (!pin->whole && bytes > p->left)
        return;
    /* Locking faults pages in one by one; the disk is asked for all of this chunk and, while it is copied, the next. */
    (void)madvise(pin->map + k * pin->chunk, (size_t)lt__min_u64(2 * pin->chunk, pin->bytes - k * pin->chunk), MADV_WILLNEED);
    lt_err why = {0};
    char a[32];
    if (lt_device_pin(p->dev, pin->map + k * pin->chunk, (size_t)bytes, &why) != LT_OK) {
        pin->refused = true;
        for (size_t i = 0; pin->whole && i < pin->chunks; i++) /* what was set aside is others' again */
            p->left += pin->locked[i] ? 0 : chunk_bytes(pin, i);
        lt__log(p->ctx, LT_LOG_WARN, "residency", "%s: its mapping of %s stays pageable, copies are slower: %s",
                lt_store_file_path(pin->store, pin->file), lt__format_bytes(pin->bytes, a, sizeof a), why.text);
        return;
    }
    pin->locked[k] = 1;
    if (!pin->whole)
        p->left -= bytes;
}

uint64_t lt__pins_span(lt__pins *p, lt_store *store, uint32_t file, uint64_t offset, uint64_t bytes, bool again)
{
    lt__pin *pin = pin_of(p, store, file);
    if (!pin)
        return bytes;
    size_t k = (size_t)(offset / pin->chunk);
    if (!pin->locked[k] && !pin->refused && (pin->whole || again))
        lock_chunk(p, pin, k);
    uint64_t end = (uint64_t)(k + 1) * pin->chunk;
    return lt__min_u64(bytes, end - offset);
}

const void *lt__pins_lock(lt__pins *p, lt_store *store, uint32_t file, uint64_t offset, uint64_t bytes)
{
    lt__pin *pin = pin_of(p, store, file);
    if (!pin || !bytes)
        return NULL;
    for (size_t k = (size_t)(offset / pin->chunk); k <= (offset + bytes - 1) / pin->chunk; k++) {
        if (!pin->locked[k] && !pin->refused)
            lock_chunk(p, pin, k);
        if (!pin->locked[k])
            return NULL;
    }
    return pin->map + offset;
}

bool lt__pins_refused(const lt__pins *p, const lt_store *store, uint32_t file)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->pin[i].store == store && p->pin[i].file == file)
            return p->pin[i].refused;
    return false;
}

void lt__residency_lend_pins(lt_residency *r, lt__pins *p)
{
    res_lock(r);
    r->pins = p;
    res_unlock(r);
}
