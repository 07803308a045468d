/* predict.c - the speed to expect from bytes, rates and the plan. */
#include <math.h>

#include "base/mem.h"
#include "plan/plan_internal.h"

/* Seconds two things take that run at once and finish together. */
static double longer(double a, double b) { return a > b ? a : b; }

static double div_rate(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* Bytes a second a streamed weight arrives at. */
static double stream_rate(const lt_plan *p, const lt_device_info *dev)
{
    if (dev->host_visible)
        return p->direct ? p->profile.read_rate : p->profile.cached_rate;
    /* Mapped files are copied from where they lie. Direct reads fill a staging ring while the link empties it:
     * the slower one counts. */
    return p->direct && p->profile.read_rate < p->profile.link_rate ? p->profile.read_rate : p->profile.link_rate;
}

/* Seconds: of the link or disk; of the device, which has to wait for what it reads in place; of that, reading in
 * place; of reading all other weights. */
typedef struct pass_cost { double stream, compute, mapped, weights; } pass_cost;

/* Share of a weight's rows that so many tokens use; each picks its experts for itself. */
static double used(const lt__plan_weight *w, uint32_t tokens) { return tokens == 1 ? w->active : 1 - pow(1 - w->active, tokens); }

/* Bytes that a pass reads in place: by which it does not stream. */
static double read_in_place(const lt_plan *p, uint32_t tokens)
{
    double sum = 0;
    for (size_t i = 0; tokens == 1 && i < p->n_slices; i++)
        if (p->slices[i].place == LT_PLACE_MAPPED)
            sum += (double)p->slices[i].bytes * p->weights[p->slices[i].weight].active;
    return sum;
}

/* One pass of `tokens` tokens that start at depth `depth`. */
static pass_cost cost_pass(const lt_plan *p, double rate, uint32_t tokens, uint32_t depth)
{
    const lt_profile *f = &p->profile;
    double in_place = f->mapped_rate > 0 ? f->mapped_rate : f->link_rate, mapped = read_in_place(p, tokens);
    double streamed = (double)(p->info.streamed_bytes - (tokens == 1 ? p->info.mapped_bytes : 0));
    pass_cost c = {.stream = div_rate(streamed, rate) + div_rate(mapped, in_place), .mapped = div_rate(mapped, in_place)};
    uint64_t launches = p->graph.n_nodes;
    for (size_t i = 0; i < p->n_slices; i++) {
        const lt__plan_slice *s = &p->slices[i];
        const lt__plan_weight *w = &p->weights[s->weight];
        launches++;
        if (w->whole)
            continue;
        const lt_dtype_traits *t = lt_dtype_get(w->dtype);
        double bytes = (double)s->bytes * used(w, tokens), macs = (double)s->bytes * w->active / t->block_bytes * t->block_elems;
        double read = div_rate(bytes, f->memory_rate);
        bool head = i + 1 == p->n_slices || w == &p->weights[p->slices[p->n_slices - 1].weight];
        double rows = head ? (tokens < p->info.rows ? tokens : p->info.rows) : tokens;
        double one = longer(div_rate(bytes, f->dot_rate[w->dtype]), read);
        if (tokens == 1 && s->place == LT_PLACE_MAPPED)
            one = longer(one, div_rate(bytes, in_place));
        c.compute += longer(one, div_rate(macs * rows, f->gemm_rate[w->dtype]));
        c.weights += read;
    }
    /* Every token attends to what lies before it; q.k and p.v are two multiply-adds each. */
    double pairs = (double)tokens * ((double)depth + tokens / 2.0);
    c.compute += div_rate(2.0 * pairs * (double)p->attend_width, f->attend_rate);
    c.compute += (double)launches * f->launch_ns * 1e-9;
    return c;
}

/* What has to come over the link, streamed or read in place. */
static double link_bytes(const lt_plan *p, uint32_t tokens)
{
    return (double)(p->info.streamed_bytes - (tokens == 1 ? p->info.mapped_bytes : 0)) + read_in_place(p, tokens);
}

double lt__plan_floor_seconds(const lt_plan *p, uint32_t tokens, uint32_t depth)
{
    /* The link for what is streamed, device memory for all that is read, arithmetic for many tokens. */
    lt_device_info dev = {.host_visible = p->profile.link_rate == 0};
    pass_cost c = cost_pass(p, stream_rate(p, &dev), tokens, depth);
    return longer(div_rate(link_bytes(p, tokens), stream_rate(p, &dev)), tokens > 8 ? c.compute : c.weights);
}

void lt__plan_predict(lt_plan *p, const lt_device_info *dev, uint32_t prompt)
{
    lt_plan_info *i = &p->info;
    double rate = stream_rate(p, dev);
    prompt = prompt < i->ctx ? prompt : i->ctx;
    pass_cost one = cost_pass(p, rate, 1, prompt);
    i->predicted_decode_tps = div_rate(1, longer(one.stream, one.compute));
    i->floor_decode_tps = div_rate(1, longer(div_rate(link_bytes(p, 1), rate), one.weights));
    const char *slow = dev->host_visible || (p->direct && p->profile.read_rate < p->profile.link_rate) ? "disk" : "link";
    i->decode_bound = one.stream > one.compute || one.mapped > 0.6 * one.compute ? slow : one.weights > 0.6 * one.compute ? "memory" : "compute";

    double seconds = 0, floor = 0, stream = 0;
    for (uint32_t done = 0; done < prompt;) {
        uint32_t n = prompt - done < i->batch ? prompt - done : i->batch;
        pass_cost c = cost_pass(p, rate, n, done);
        seconds += longer(c.stream, c.compute);
        floor += lt__plan_floor_seconds(p, n, done);
        stream += c.stream;
        done += n;
    }
    i->predicted_prefill_tps = div_rate(prompt, seconds);
    i->floor_prefill_tps = div_rate(prompt, floor);
    i->prefill_bound = stream > 0.99 * seconds ? slow : "compute";
    lt__plan_reason(p, "decode is bound by %s: %.2f ms a token to bring %lu streamed bytes, %.2f ms to compute", i->decode_bound,
                    one.stream * 1e3, (uint64_t)link_bytes(p, 1), one.compute * 1e3);
}
