/* plan.c - sizes the arena for a budget: KV, activations, resident weights, ring.
 *
 * A pass over the weights is a cyclic sweep, where any reactive policy hits nothing; so the plan
 * fixes a resident set, spread evenly along the pass so that copies hide behind the compute
 * between them, and streams the rest through a ring in slices of rows. */
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "memory/hosttier.h"
#include "memory/pins.h"
#include "plan/plan_internal.h"

#define DEFAULT_CTX 8192u
#define DEFAULT_BATCH 512u
#define STREAM_BATCH 2048u /* of a prompt that long, where each pass brings the weights over a link again */
#define SLOT_SLACK 8192u /* a direct read covers whole blocks of 4096 bytes at both ends */
#define MIN_SLOTS 3u
#define GOOD_SLOTS 6u
#define MAX_RING_LINK (UINT64_C(128) << 20)
#define MAX_RING_DISK (UINT64_C(96) << 20)
/* A card's link carries 53 GB/s in copies of 4 MiB, 54.5 in 16, 55.3 in 64; a disk is at full speed from 4. */
#define MAX_SLICE_LINK (UINT64_C(16) << 20)
#define MAX_SLICE_DISK (UINT64_C(4) << 20)
#define MIN_SLICE (UINT64_C(32) << 10)
/* Pinned memory between a disk and a card: a disk wants some MiB in flight at any time. */
#define MIN_STAGING (UINT64_C(8) << 20)
#define MAX_STAGING (UINT64_C(64) << 20)

/* Areas of the arena for one choice of context and batch. */
typedef struct areas { uint64_t kv, act, io, scratch, whole, sum; uint32_t pages[2]; } areas;
typedef struct choice { uint32_t ctx, batch, rows; areas a; bool all_resident; } choice;

lt_plan_desc lt_plan_desc_default(void)
{
    return (lt_plan_desc){.struct_bytes = sizeof(lt_plan_desc), .kv_dtype = LT_DTYPE_F16};
}

void lt__plan_reason(lt_plan *p, const char *fmt, ...)
{
    /* A reason lost to memory is not worth failing a plan for. */
    if (lt__grow(p->ctx, (void **)&p->reasons, &p->cap_reasons, p->n_reasons + 1, sizeof *p->reasons, NULL) != LT_OK)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->reasons[p->n_reasons++], sizeof *p->reasons, fmt, ap);
    va_end(ap);
}

static uint64_t block(uint64_t bytes) { return lt__round_up(bytes, LT__PLAN_ALIGN); }
static uint32_t least_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static lt_status size_areas(const lt__plan_input *in, uint32_t ctx, uint32_t batch, uint32_t rows, areas *a, lt_err *err)
{
    memset(a, 0, sizeof *a);
    uint32_t full = (ctx + LT_KV_PAGE - 1) / LT_KV_PAGE;
    for (uint32_t g = 0; g < in->n_groups; g++) {
        uint64_t n = full, w = in->groups[g].window, bytes;
        if (w) /* the ring of pages holds a window and a batch, whose ends may both lie inside a page */
            n = lt__min_u64(full, (w + batch + LT_KV_PAGE - 1) / LT_KV_PAGE + 1);
        a->pages[g] = (uint32_t)n;
        if (!lt__mul_u64(n, in->groups[g].page_bytes, &bytes))
            return lt__fail(err, LT_E_INVALID, "a context of %u positions overflows", ctx);
        a->kv += block(bytes);
        for (size_t i = 0; i < in->graph->n_tensors; i++) {
            lt_tensor *t = &in->graph->tensors[i];
            if (t->group == g && (t->role == LT_ROLE_TABLE || t->role == LT_ROLE_KV))
                t->dim[0] = (int64_t)(t->role == LT_ROLE_TABLE ? n : bytes);
        }
    }
    lt_status s = lt__graph_layout(in->graph, batch, rows, LT__PLAN_ALIGN, &a->act, err);
    if (s == LT_OK)
        s = lt__graph_layout_io(in->graph, batch, rows, LT__PLAN_ALIGN, &a->io, err);
    if (s != LT_OK)
        return s;
    a->act = block(a->act);
    a->io = block(a->io);
    for (size_t i = 0; i < in->n_weights; i++)
        if (in->weights[i].whole)
            a->whole += block(in->weights[i].bytes);
    a->scratch = in->scratch ? block(in->scratch(in->scratch_user, in->graph, batch, rows)) : 0;
    a->sum = a->kv + a->act + a->io + a->scratch + a->whole;
    return LT_OK;
}

static uint64_t cut_bytes(const lt__plan_input *in) /* of weights that may be cut and streamed */
{
    uint64_t sum = 0;
    for (size_t i = 0; i < in->n_weights; i++)
        if (!in->weights[i].whole)
            sum += block(in->weights[i].bytes);
    return sum;
}

/* Smallest slice that holds a unit of every weight. */
static uint64_t least_slice(const lt__plan_input *in)
{
    uint64_t most = MIN_SLICE;
    for (size_t i = 0; i < in->n_weights; i++)
        if (!in->weights[i].whole)
            most = lt__max_u64(most, lt__min_u64(in->weights[i].rows, in->weights[i].unit) * in->weights[i].row_bytes);
    return most;
}

/* Bounds of a context left to the planner: what will be used, or a common default. KV comes in pages. */
static uint32_t most_ctx(const lt__plan_input *in, const lt_plan_desc *d)
{
    return d->ctx ? d->ctx : least_u32(in->context, d->ctx_most ? d->ctx_most : DEFAULT_CTX);
}

static uint32_t least_ctx(const lt__plan_input *in, const lt_plan_desc *d)
{
    uint32_t page = least_u32(LT_KV_PAGE, most_ctx(in, d));
    return d->ctx ? d->ctx : least_u32(in->context, d->ctx_least > page ? d->ctx_least : page);
}

static uint32_t most_batch(const lt_plan_desc *d, uint32_t most)
{
    return d->batch ? d->batch : d->expect_prompt ? least_u32(d->expect_prompt, most) : DEFAULT_BATCH;
}

static uint64_t ring_for(uint64_t slice, uint64_t slots) { return slots * block(slice + SLOT_SLACK); }

/* The largest context and batch with which every weight stays resident, if there is one. A batch under
 * 64 reads prompts markedly slower, so a smaller context is tried first. */
static lt_status choose_resident(const lt__plan_input *in, const lt_plan_desc *d, uint64_t room, choice *c, lt_err *err)
{
    uint64_t cut = cut_bytes(in);
    uint32_t top = most_ctx(in, d), low = least_ctx(in, d);
    uint32_t top_batch = most_batch(d, DEFAULT_BATCH), low_batch = d->batch ? d->batch : least_u32(64, top_batch);
    for (uint32_t ctx = top;; ctx = ctx / 2 < low ? low : ctx / 2) {
        for (uint32_t batch = top_batch; batch >= low_batch; batch /= 2) {
            lt_status s = size_areas(in, ctx, least_u32(batch, ctx), c->rows, &c->a, err);
            if (s != LT_OK)
                return s;
            if (c->a.sum <= room && cut <= room - c->a.sum) {
                c->ctx = ctx;
                c->batch = least_u32(batch, ctx);
                c->all_resident = true;
                return LT_OK;
            }
        }
        if (ctx == low)
            return LT_OK;
    }
}

/* Streaming anyway: a quarter of the room at most for KV and another for activations, unless asked. */
static lt_status choose_streamed(const lt__plan_input *in, const lt_plan_desc *d, uint64_t room, bool link, choice *c, lt_err *err)
{
    uint32_t ctx = most_ctx(in, d), low = least_ctx(in, d);
    uint32_t batch = least_u32(most_batch(d, link ? STREAM_BATCH : DEFAULT_BATCH), ctx), low_batch = d->batch ? batch : 1;
    for (;;) {
        lt_status s = size_areas(in, ctx, batch, c->rows, &c->a, err);
        if (s != LT_OK)
            return s;
        bool tight = c->a.sum + ring_for(least_slice(in), MIN_SLOTS) > room;
        bool wide = c->a.act + c->a.io + c->a.scratch > room / 4 || tight;
        if (wide && c->rows > 1)
            c->rows /= 2; /* rows of logits are the cheapest to do without */
        else if ((c->a.kv > room / 4 || (tight && batch == low_batch)) && ctx > low)
            ctx = ctx / 2 < low ? low : ctx / 2;
        else if (wide && batch > low_batch)
            batch /= 2;
        else
            break;
        batch = least_u32(batch, ctx);
    }
    c->ctx = ctx;
    c->batch = batch;
    return LT_OK;
}

/* Rows of a weight in one slice of at most `slice` bytes: even parts, by whole units. */
static uint64_t slice_rows(const lt__plan_weight *w, uint64_t slice)
{
    if (w->whole || !slice || w->bytes <= slice)
        return w->rows;
    uint64_t parts = (w->bytes + slice - 1) / slice;
    uint64_t rows = lt__min_u64(w->rows, lt__round_up((w->rows + parts - 1) / parts, w->unit));
    while (rows > w->unit && rows * w->row_bytes > slice)
        rows -= w->unit;
    return rows;
}

/* Cuts the weights in order of use; places are given later. slice 0: whole. */
static lt_status cut_weights(lt_plan *p, uint64_t slice, lt_err *err)
{
    p->n_slices = 0;
    for (size_t n = 0; n < p->graph.n_nodes; n++) {
        const lt_node *node = &p->graph.nodes[n];
        for (uint32_t k = 0; k < node->n_src; k++) {
            const lt_tensor *t = &p->graph.tensors[node->src[k]];
            if (t->kind != LT_TENSOR_WEIGHT)
                continue;
            const lt__plan_weight *w = &p->weights[t->weight];
            uint64_t rows = slice_rows(w, slice);
            for (uint64_t r = 0; r < w->rows; r += rows) {
                lt_status s = lt__grow(p->ctx, (void **)&p->slices, &p->cap_slices, p->n_slices + 1,
                                       sizeof *p->slices, err);
                if (s != LT_OK)
                    return s;
                uint64_t m = lt__min_u64(rows, w->rows - r);
                p->slices[p->n_slices++] = (lt__plan_slice){
                    t->weight, r, m, w->whole ? w->bytes : m * w->row_bytes, LT_PLACE_RESIDENT};
            }
        }
    }
    return LT_OK;
}

static bool is_expert(const lt_plan *p, const lt__plan_slice *s) { return p->weights[s->weight].active < 1; }

static uint64_t cut_total(const lt_plan *p, bool experts)
{
    uint64_t total = 0;
    for (size_t i = 0; i < p->n_slices; i++)
        if (!p->weights[p->slices[i].weight].whole && is_expert(p, &p->slices[i]) == experts)
            total += block(p->slices[i].bytes);
    return total;
}

/* Error diffusion along the pass spreads what is streamed, by slices; of experts by whole weights: one launch each, and
 * what is read in place lies together in the file. Returns the room that is left. */
static uint64_t spread_slices(lt_plan *p, bool experts, uint64_t room)
{
    uint64_t total = cut_total(p, experts), left = room;
    double share = total ? (double)room / (double)total : 1, credit = 0;
    for (size_t i = 0, end; i < p->n_slices; i = end) {
        const lt__plan_slice *first = &p->slices[i];
        end = i + 1;
        if (p->weights[first->weight].whole || is_expert(p, first) != experts)
            continue;
        while (experts && end < p->n_slices && p->slices[end].weight == first->weight)
            end++;
        uint64_t b = 0;
        for (size_t k = i; k < end; k++)
            b += block(p->slices[k].bytes);
        credit += share * (double)b;
        if (credit >= (double)b && b <= left) {
            credit -= (double)b;
            left -= b;
            continue;
        }
        for (size_t k = i; k < end; k++)
            p->slices[k].place = LT_PLACE_STREAMED;
    }
    return left;
}

/* A token uses all of a matrix, and of experts some: matrices stay first. A second sweep fills what is left. */
static void place_slices(lt_plan *p, uint64_t resident_room)
{
    uint64_t room = lt__min_u64(cut_total(p, false), resident_room), left = spread_slices(p, false, room);
    left += spread_slices(p, true, resident_room - room);
    for (size_t i = 0; i < p->n_slices; i++) {
        lt__plan_slice *s = &p->slices[i];
        if (s->place == LT_PLACE_STREAMED && block(s->bytes) <= left) {
            left -= block(s->bytes);
            s->place = LT_PLACE_RESIDENT;
        }
    }
}

/* Neighbouring resident slices of a weight become one: fewer launches. */
static void merge_slices(lt_plan *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_slices; i++) {
        lt__plan_slice *s = &p->slices[i], *last = n ? &p->slices[n - 1] : NULL;
        if (last && last->weight == s->weight && last->place == s->place && s->place == LT_PLACE_RESIDENT &&
            last->row0 + last->rows == s->row0) {
            last->rows += s->rows;
            last->bytes += s->bytes;
        } else {
            p->slices[n++] = *s;
        }
    }
    p->n_slices = n;
}

static uint64_t sum_place(const lt_plan *p, lt_place place, bool blocks)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n_slices; i++)
        if (p->slices[i].place == place)
            sum += blocks ? block(p->slices[i].bytes) : p->slices[i].bytes;
    return sum;
}

static lt_status place_weights(lt_plan *p, const lt__plan_input *in, const choice *c, uint64_t room, bool link, lt_err *err)
{
    char a[24], b[24], e[24], f[24];
    lt_status s;
    if (c->all_resident) {
        if ((s = cut_weights(p, 0, err)) != LT_OK)
            return s;
        lt__plan_reason(p, "all %s of weights stay resident, beside %s of KV and %s of activations",
                        lt__format_bytes(sum_place(p, LT_PLACE_RESIDENT, false), a, sizeof a),
                        lt__format_bytes(c->a.kv, b, sizeof b), lt__format_bytes(c->a.act + c->a.io, e, sizeof e));
        return LT_OK;
    }
    uint64_t weights_room = room - c->a.sum, cut = cut_bytes(in), least = least_slice(in);
    uint64_t deficit = cut - lt__min_u64(cut, weights_room);
    /* A ring larger than what is streamed would only push more out. */
    uint64_t ring = lt__min_u64(lt__min_u64(weights_room / 10, link ? MAX_RING_LINK : MAX_RING_DISK),
                                lt__max_u64(deficit, ring_for(least, MIN_SLOTS)));
    uint64_t slice = link ? MAX_SLICE_LINK : MAX_SLICE_DISK;
    while (slice / 2 >= least && ring_for(slice, GOOD_SLOTS) > ring)
        slice /= 2;
    slice = lt__max_u64(slice, least);
    if (ring_for(slice, GOOD_SLOTS) > ring)
        slice = least;
    ring = lt__max_u64(lt__round_down(ring, LT__PLAN_ALIGN), ring_for(slice, MIN_SLOTS));
    if ((s = cut_weights(p, slice, err)) != LT_OK)
        return s;
    place_slices(p, weights_room - ring);
    merge_slices(p);
    for (size_t i = 0; i < p->n_slices; i++)
        if (p->slices[i].place == LT_PLACE_STREAMED)
            p->slice_bytes = lt__max_u64(p->slice_bytes, p->slices[i].bytes);
    p->info.ring_bytes = ring;
    lt__plan_reason(p, "weights miss the room beside KV and activations by %s: %s a pass are streamed through a ring of %s, in slices of at most %s",
                    lt__format_bytes(deficit, a, sizeof a),
                    lt__format_bytes(sum_place(p, LT_PLACE_STREAMED, false), b, sizeof b),
                    lt__format_bytes(ring, e, sizeof e), lt__format_bytes(p->slice_bytes, f, sizeof f));
    return LT_OK;
}

/* The least budget with which the choices left to the planner succeed. */
static lt_status smallest_budget(const lt__plan_input *in, const lt_plan_desc *d, const lt_device_info *dev,
                                 uint64_t *out, lt_err *err)
{
    areas a;
    uint32_t ctx = least_ctx(in, d), batch = least_u32(d->batch ? d->batch : 1, ctx);
    lt_status s = size_areas(in, ctx, batch, 1, &a, err);
    if (s == LT_OK)
        *out = dev->fixed_bytes + lt__round_up(a.sum + lt__min_u64(cut_bytes(in), ring_for(least_slice(in), MIN_SLOTS)),
                                               dev->commit_bytes);
    return s;
}

static lt_status check_desc(const lt__plan_input *in, const lt_plan_desc *d, const lt_device_info *dev, lt_err *err)
{
    char a[24], b[24];
    const lt_dtype_traits *kv = lt_dtype_get(d->kv_dtype);
    if (d->struct_bytes != sizeof *d)
        return lt__fail(err, LT_E_INVALID, "lt_plan_desc: struct_bytes is %u, expected %zu (use lt_plan_desc_default)",
                        d->struct_bytes, sizeof *d);
    if (d->ctx > in->context)
        return lt__fail(err, LT_E_INVALID, "a context of %u: the model was made for at most %u", d->ctx, in->context);
    if (d->ctx_most && d->ctx_least > d->ctx_most)
        return lt__fail(err, LT_E_INVALID, "ctx_least %u is over ctx_most %u", d->ctx_least, d->ctx_most);
    if (d->kv_dtype != LT_DTYPE_F16 && d->kv_dtype != LT_DTYPE_Q8_0 && d->kv_dtype != LT_DTYPE_F32)
        return lt__fail(err, LT_E_INVALID, "KV type %s: expected F16, Q8_0 or F32", kv ? kv->name : "out of range");
    if ((unsigned)d->offload >= LT_OFFLOAD_COUNT)
        return lt__fail(err, LT_E_INVALID, "offload of kind %d: expected STREAM or MAPPED", (int)d->offload);
    if (d->offload == LT_OFFLOAD_MAPPED && !dev->maps_host)
        return lt__fail(err, LT_E_INVALID, "offload mapped: %s does not read host memory in place; leave it at stream", dev->name);
    if ((unsigned)d->attention >= LT_ATTENTION_COUNT)
        return lt__fail(err, LT_E_INVALID, "attention of kind %d: expected FLASH, EXACT or SAGE", (int)d->attention);
    if (d->batch > 65536 || d->rows > 65536)
        return lt__fail(err, LT_E_INVALID, "a batch of %u, %u rows of logits: at most 65536", d->batch, d->rows);
    if (d->budget_bytes > dev->total_bytes)
        return lt__fail(err, LT_E_NO_FIT, "a budget of %s is more than the device has: %s",
                        lt__format_bytes(d->budget_bytes, a, sizeof a), lt__format_bytes(dev->total_bytes, b, sizeof b));
    return LT_OK;
}

/* Budget in bytes, and the room of the arena inside it; refuses what can't work. */
static lt_status find_room(const lt__plan_input *in, const lt_plan_desc *d, const lt_device_info *dev,
                           uint64_t *budget, uint64_t *least, uint64_t *room, lt_err *err)
{
    char a[24], b[24], e[24];
    *budget = d->budget_bytes;
    if (!*budget || d->reserve_bytes) {
        if (d->reserve_bytes >= dev->free_bytes)
            return lt__fail(err, LT_E_NO_FIT, "a reserve of %s leaves nothing: the device has %s free",
                            lt__format_bytes(d->reserve_bytes, a, sizeof a), lt__format_bytes(dev->free_bytes, b, sizeof b));
        uint64_t most = dev->fixed_bytes + dev->free_bytes - d->reserve_bytes;
        *budget = *budget ? lt__min_u64(*budget, most) : most;
    }
    lt_status s = smallest_budget(in, d, dev, least, err);
    if (s != LT_OK)
        return s;
    if (*budget < *least)
        return lt__fail(err, LT_E_NO_FIT,
                        "a budget of %s (%lu bytes) is too small: %s (%lu bytes) is the least that works, %lu bytes (%s) are missing%s",
                        lt__format_bytes(*budget, a, sizeof a), *budget, lt__format_bytes(*least, b, sizeof b), *least,
                        *least - *budget, lt__format_bytes(*least - *budget, e, sizeof e),
                        d->ctx || d->batch ? "; a smaller context or batch needs less" : "");
    *room = lt__round_down(*budget - dev->fixed_bytes, dev->commit_bytes);
    return LT_OK;
}

/* Bytes of experts that do not stay on the device, with what is locked around each weight's. */
static uint64_t streamed_experts(const lt_plan *p)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < p->n_slices; k++) {
        const lt__plan_slice *s = &p->slices[k];
        if (s->place == LT_PLACE_STREAMED && is_expert(p, s))
            sum += s->bytes + (k && p->slices[k - 1].weight == s->weight && p->slices[k - 1].place == s->place ? 0 : LT__PIN_PART_CHUNK);
    }
    return sum;
}

/* What would be streamed is read in place by passes of one token, as long as the file may stay page-locked. */
static lt_status map_slices(lt_plan *p, const lt__plan_input *in, const lt_device_info *dev, const lt_plan_desc *d, lt_err *err)
{
    char a[24], b[24];
    lt_plan_info *i = &p->info;
    bool all = d->offload == LT_OFFLOAD_MAPPED;
    uint64_t experts = lt__min_u64(streamed_experts(p), in->file_bytes);
    if (!i->streamed_bytes || !(all || (experts && dev->maps_host)))
        return LT_OK;
    /* What is streamed lies all over the file, which is locked in large chunks. */
    uint64_t most = p->direct ? d->ram_bytes ? d->ram_bytes : lt__host_budget() : lt__pin_limit(dev);
    if (!all && (experts > most || p->direct)) {
        lt__plan_reason(p, "experts are streamed to every token, the unused ones too: to read the used ones in place, %s would have to stay "
                           "page-locked in host memory, and %s %s", lt__format_bytes(experts, a, sizeof a),
                        lt__format_bytes(most, b, sizeof b), p->direct ? "of RAM may be used" : "is the most that may be locked");
        return LT_OK;
    }
    if (all && in->file_bytes > most)
        return lt__fail(err, LT_E_NO_FIT, "offload mapped: the model's %s would have to stay page-locked in host memory, and %s %s; leave it at stream",
                        lt__format_bytes(in->file_bytes, a, sizeof a), lt__format_bytes(most, b, sizeof b),
                        p->direct ? "of RAM may be used" : "is the most that may be locked");
    for (size_t k = 0; k < p->n_slices; k++)
        if (p->slices[k].place == LT_PLACE_STREAMED && (all || is_expert(p, &p->slices[k]))) {
            p->slices[k].place = LT_PLACE_MAPPED;
            i->mapped_bytes += p->slices[k].bytes;
            i->mapped_items++;
        }
    lt__plan_reason(p, "a pass of one token reads %s%s in place, from page-locked host memory; prompts stream them through the ring",
                    experts ? "what it uses of " : "the streamed ", lt__format_bytes(i->mapped_bytes, a, sizeof a));
    return LT_OK;
}

static void fill_info(lt_plan *p, const choice *c)
{
    lt_plan_info *i = &p->info;
    i->ctx = c->ctx;
    i->batch = c->batch;
    i->rows = c->rows;
    i->kv_bytes = c->a.kv;
    i->activation_bytes = c->a.act;
    i->io_bytes = c->a.io;
    i->scratch_bytes = c->a.scratch;
    i->resident_bytes = sum_place(p, LT_PLACE_RESIDENT, false);
    i->streamed_bytes = sum_place(p, LT_PLACE_STREAMED, false);
    i->weight_bytes = i->resident_bytes + i->streamed_bytes + i->host_bytes;
    i->items = (uint32_t)p->n_slices;
    for (size_t k = 0; k < p->n_slices; k++)
        i->streamed_items += p->slices[k].place == LT_PLACE_STREAMED;
    p->arena_bytes = sum_place(p, LT_PLACE_RESIDENT, true) + i->ring_bytes + i->kv_bytes + i->activation_bytes + i->io_bytes +
                     i->scratch_bytes;
    memcpy(p->pages, c->a.pages, sizeof p->pages);
}

/* Whether weights come by way of the page cache. On a host-visible device the budget is RAM, and page cache
 * behind its back would break it; a card's weights go around it where they would not stay in it. Of a model with
 * experts only what is read again and again has to stay: the rest is read once. */
static void choose_way(lt_plan *p, const lt__plan_input *in, const lt_device_info *dev, const lt_plan_desc *d)
{
    char a[24], b[24];
    if (dev->host_visible) {
        p->direct = p->info.streamed_bytes > 0;
        return;
    }
    uint64_t ram = d->ram_bytes ? d->ram_bytes : lt__host_budget();
    uint64_t experts = streamed_experts(p), again = experts ? lt__min_u64(p->info.streamed_bytes + p->info.host_bytes, in->file_bytes) : in->file_bytes;
    p->direct = again > ram;
    if (!p->direct)
        return;
    p->staging_bytes = lt__max_u64(lt__min_u64(ram / 8, MAX_STAGING), MIN_STAGING);
    lt__plan_reason(p, "%s %s is more than %s of RAM: weights are read from disk past the page cache", experts ? "what is read again and again," : "the file of",
                    lt__format_bytes(again, a, sizeof a), lt__format_bytes(ram, b, sizeof b));
}

/* All but the graph and the weights, which are the caller's until there is a plan. */
static void drop_plan(lt_plan *p)
{
    lt__free(p->ctx, p->slices, p->cap_slices * sizeof *p->slices);
    lt__free(p->ctx, p->reasons, p->cap_reasons * sizeof *p->reasons);
    lt__free(p->ctx, p, sizeof *p);
}

lt_status lt__plan_make(lt__plan_input *in, const lt_device_info *dev, const lt_profile *prof, const lt_plan_desc *d,
                        lt_plan **out, lt_err *err)
{
    *out = NULL;
    LT_ASSERT(dev->commit_bytes && (dev->commit_bytes & (dev->commit_bytes - 1)) == 0);
    uint64_t budget = 0, least = 0, room = 0;
    choice c = {.rows = d->rows ? d->rows : 1};
    lt_status s = check_desc(in, d, dev, err);
    if (s == LT_OK)
        s = find_room(in, d, dev, &budget, &least, &room, err);
    if (s == LT_OK)
        s = choose_resident(in, d, room, &c, err);
    for (; s == LT_OK && !c.all_resident && c.rows > 1; c.rows /= 2) {
        choice less = {.rows = c.rows / 2};
        if ((s = choose_resident(in, d, room, &less, err)) == LT_OK && less.all_resident)
            c = less;
        if (c.all_resident)
            break;
    }
    if (!c.all_resident)
        c.rows = d->rows ? d->rows : 1;
    if (s == LT_OK && !c.all_resident)
        s = choose_streamed(in, d, room, !dev->host_visible, &c, err);
    if (s != LT_OK)
        return s;
    lt_plan *p = lt__zalloc(in->ctx, sizeof *p);
    if (!p)
        return lt__fail_oom(err, sizeof *p, "a plan");
    p->ctx = in->ctx;
    p->graph = *in->graph;
    p->weights = in->weights;
    p->n_weights = in->n_weights;
    p->n_groups = in->n_groups;
    memcpy(p->groups, in->groups, sizeof p->groups);
    p->profile = *prof;
    p->desc = *d;
    p->attend_width = in->attend_width;
    p->info = (lt_plan_info){.budget_bytes = budget, .fixed_bytes = dev->fixed_bytes, .smallest_budget_bytes = least,
                             .host_bytes = in->host_weight_bytes, .kv_dtype = d->kv_dtype};
    if (budget < d->budget_bytes) {
        char a[24], b[24], e[24];
        lt__plan_reason(p, "the budget of %s shrinks to %s: %s are free, of which the reserve stays so",
                        lt__format_bytes(d->budget_bytes, a, sizeof a), lt__format_bytes(budget, b, sizeof b),
                        lt__format_bytes(dev->free_bytes, e, sizeof e));
    }
    if (strcmp(dev->memory_mode, "managed") == 0)
        lt__plan_reason(p, "memory is managed: the arena is prefetched to the card, and lies there whole unless others need more than "
                           "is free: then the driver moves pages to the host, and kernels read those over the link");
    if ((s = place_weights(p, in, &c, room, !dev->host_visible, err)) != LT_OK) {
        drop_plan(p);
        return s;
    }
    fill_info(p, &c);
    p->arena_bytes = lt__round_up(p->arena_bytes, dev->commit_bytes);
    p->info.predicted_peak_bytes = dev->fixed_bytes + p->arena_bytes;
    LT_ASSERT(p->info.predicted_peak_bytes <= budget);
    choose_way(p, in, dev, d);
    if ((s = map_slices(p, in, dev, d, err)) != LT_OK) {
        drop_plan(p);
        return s;
    }
    lt__plan_predict(p, dev, d->expect_prompt ? d->expect_prompt : 512);
    *out = p;
    return LT_OK;
}

void lt_plan_destroy(lt_plan *p)
{
    if (!p)
        return;
    lt__graph_deinit(&p->graph);
    lt__free(p->ctx, p->weights, p->n_weights * sizeof *p->weights);
    drop_plan(p);
}

const char *lt_place_name(lt_place p)
{
    static const char *const name[LT_PLACE_COUNT] = {"resident", "streamed", "mapped", "host"};
    return (unsigned)p < LT_PLACE_COUNT ? name[p] : "?";
}

const lt_plan_info *lt_plan_get_info(const lt_plan *p) { return &p->info; }
size_t lt_plan_item_count(const lt_plan *p) { return p->n_slices; }

lt_plan_item lt_plan_item_at(const lt_plan *p, size_t i)
{
    const lt__plan_slice *s = &p->slices[i];
    return (lt_plan_item){p->weights[s->weight].name, s->row0, s->rows, s->bytes, p->weights[s->weight].dtype, s->place};
}

size_t lt_plan_reason_count(const lt_plan *p) { return p->n_reasons; }
const char *lt_plan_reason_at(const lt_plan *p, size_t i) { return p->reasons[i]; }
