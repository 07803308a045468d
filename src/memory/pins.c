#include "memory/pins.h"

#include "base/mem.h"
#include "memory/residency_impl.h"

void lt__pins_init(lt__pins *p, lt_ctx *ctx, lt_device *dev, uint64_t most_bytes)
{
    *p = (lt__pins){.ctx = ctx, .dev = dev, .left = lt__pin_budget(dev, most_bytes)};
}

void lt__pins_deinit(lt__pins *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->pin[i].ptr)
            lt_device_unpin(p->dev, p->pin[i].ptr, p->pin[i].bytes);
    lt__free(p->ctx, p->pin, p->cap * sizeof *p->pin);
    *p = (lt__pins){0};
}

void lt__pins_file(lt__pins *p, lt_store *store, uint32_t file)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->pin[i].store == store && p->pin[i].file == file)
            return;
    if (lt__grow(p->ctx, (void **)&p->pin, &p->cap, p->n + 1, sizeof *p->pin, NULL) != LT_OK)
        return;
    lt__pin *pin = &p->pin[p->n++];
    *pin = (lt__pin){store, file, NULL, 0};
    uint64_t bytes;
    void *map = (void *)lt__store_map_whole(store, file, &bytes);
    lt_err why = {0};
    char a[32];
    if (bytes > p->left || bytes == 0)
        return; /* asked for less: nothing to tell */
    if (lt_device_pin(p->dev, map, (size_t)bytes, &why) != LT_OK) {
        lt__log(p->ctx, LT_LOG_WARN, "residency", "%s: its mapping of %s stays pageable, copies are slower: %s",
                lt_store_file_path(store, file), lt__format_bytes(bytes, a, sizeof a), why.text);
        return;
    }
    p->left -= bytes;
    pin->ptr = map;
    pin->bytes = (size_t)bytes;
}

void lt__residency_lend_pins(lt_residency *r, lt__pins *p)
{
    res_lock(r);
    r->pins = p;
    res_unlock(r);
}
