/* sampler.c - picks a token from logits. Order: penalty, top-k, temperature, top-p, min-p, draw.
 *
 * All arithmetic in double on the host, so that the choice depends on the logits' bits and the seed
 * only. The generator is xoshiro256** (Blackman and Vigna), seeded by splitmix64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "lowtide/session.h"

typedef struct candidate { int32_t id; float logit; } candidate;

struct lt_sampler {
    lt_ctx         *ctx;
    lt_sampler_desc d;
    uint32_t        vocab;
    uint64_t        rng[4];
    candidate      *cand;   /* [vocab] */
    double         *prob;   /* [vocab] */
    int32_t        *recent; /* ring of the last repeat_last tokens */
    uint32_t        n_recent, next;
    uint16_t       *seen;   /* [vocab] how often in the ring */
};

lt_sampler_desc lt_sampler_desc_default(void)
{
    return (lt_sampler_desc){.struct_bytes = sizeof(lt_sampler_desc), .temperature = 0.8f, .top_k = 40, .top_p = 0.95f,
                             .min_p = 0.05f, .repeat_penalty = 1, .repeat_last = 64, .seed = 0};
}

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

static double next_uniform(uint64_t s[4])
{
    uint64_t r = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return (double)(r >> 11) * 0x1p-53;
}

static lt_status check_desc(const lt_sampler_desc *d, lt_err *err)
{
    if (d->struct_bytes != sizeof *d)
        return lt__fail(err, LT_E_INVALID, "lt_sampler_desc: struct_bytes is %u, expected %zu", d->struct_bytes, sizeof *d);
    if (!(d->temperature >= 0 && d->temperature <= 100))
        return lt__fail(err, LT_E_INVALID, "temperature %g: expected 0 to 100", (double)d->temperature);
    if (!(d->top_p > 0 && d->top_p <= 1))
        return lt__fail(err, LT_E_INVALID, "top-p %g: expected more than 0, at most 1", (double)d->top_p);
    if (!(d->min_p >= 0 && d->min_p < 1))
        return lt__fail(err, LT_E_INVALID, "min-p %g: expected 0 to less than 1", (double)d->min_p);
    if (!(d->repeat_penalty > 0 && d->repeat_penalty <= 100))
        return lt__fail(err, LT_E_INVALID, "repetition penalty %g: expected more than 0, at most 100", (double)d->repeat_penalty);
    if (d->repeat_last > 65535)
        return lt__fail(err, LT_E_INVALID, "the penalty's range is %u tokens: expected at most 65535", d->repeat_last);
    return LT_OK;
}

lt_status lt_sampler_create(lt_ctx *ctx, const lt_sampler_desc *desc, uint32_t vocab, lt_sampler **out, lt_err *err)
{
    *out = NULL;
    lt_sampler_desc d = desc ? *desc : lt_sampler_desc_default();
    lt_status st = check_desc(&d, err);
    if (st != LT_OK)
        return st;
    if (!vocab)
        return lt__fail(err, LT_E_INVALID, "a sampler needs a vocabulary of at least one token");
    lt_sampler *s = lt__zalloc(ctx, sizeof *s);
    if (!s)
        return lt__fail_oom(err, sizeof *s, "a sampler");
    s->ctx = ctx;
    s->d = d;
    s->vocab = vocab;
    s->cand = lt__alloc_array(ctx, vocab, sizeof *s->cand);
    s->prob = lt__alloc_array(ctx, vocab, sizeof *s->prob);
    s->seen = lt__alloc_array(ctx, vocab, sizeof *s->seen);
    s->recent = d.repeat_last ? lt__alloc_array(ctx, d.repeat_last, sizeof *s->recent) : NULL;
    if (!s->cand || !s->prob || !s->seen || (d.repeat_last && !s->recent)) {
        lt_sampler_destroy(s);
        return lt__fail_oom(err, vocab * sizeof(candidate), "a sampler");
    }
    uint64_t x = d.seed;
    for (int i = 0; i < 4; i++)
        s->rng[i] = splitmix(&x);
    *out = s;
    return LT_OK;
}

void lt_sampler_destroy(lt_sampler *s)
{
    if (!s)
        return;
    lt__free(s->ctx, s->cand, s->vocab * sizeof *s->cand);
    lt__free(s->ctx, s->prob, s->vocab * sizeof *s->prob);
    lt__free(s->ctx, s->seen, s->vocab * sizeof *s->seen);
    lt__free(s->ctx, s->recent, s->d.repeat_last * sizeof *s->recent);
    lt__free(s->ctx, s, sizeof *s);
}

void lt_sampler_accept(lt_sampler *s, int32_t id)
{
    if (!s->recent || id < 0 || (uint32_t)id >= s->vocab)
        return;
    if (s->n_recent == s->d.repeat_last)
        s->seen[s->recent[s->next]]--;
    else
        s->n_recent++;
    s->recent[s->next] = id;
    s->seen[id]++;
    s->next = (s->next + 1) % s->d.repeat_last;
}

/* A positive logit is divided, a negative one multiplied: both make the token less likely. */
static float penalised(const lt_sampler *s, int32_t id, float logit)
{
    if (!s->seen[id] || s->d.repeat_penalty == 1)
        return logit;
    return logit > 0 ? logit / s->d.repeat_penalty : logit * s->d.repeat_penalty;
}

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Keeps the k best in the first k places, worst at the root of a heap; O(n log k). */
static uint32_t keep_best(candidate *c, uint32_t n, uint32_t k)
{
    if (k >= n)
        return n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at;
        candidate x = c[i];
        if (i < k) { /* sift up */
            for (at = i; at && by_logit(&c[(at - 1) / 2], &x) < 0; at = (at - 1) / 2)
                c[at] = c[(at - 1) / 2];
            c[at] = x;
        } else if (by_logit(&x, &c[0]) < 0) { /* replaces the worst; sift down */
            for (at = 0;;) {
                uint32_t kid = 2 * at + 1;
                if (kid >= k)
                    break;
                if (kid + 1 < k && by_logit(&c[kid], &c[kid + 1]) < 0)
                    kid++;
                if (by_logit(&x, &c[kid]) >= 0)
                    break;
                c[at] = c[kid];
                at = kid;
            }
            c[at] = x;
        }
    }
    return k;
}

int32_t lt_sampler_pick(lt_sampler *s, const float *logits)
{
    if (s->d.temperature == 0) {
        int32_t best = 0;
        float top = penalised(s, 0, logits[0]);
        for (uint32_t i = 1; i < s->vocab; i++) {
            float v = penalised(s, (int32_t)i, logits[i]);
            if (v > top) {
                top = v;
                best = (int32_t)i;
            }
        }
        return best;
    }
    for (uint32_t i = 0; i < s->vocab; i++)
        s->cand[i] = (candidate){(int32_t)i, penalised(s, (int32_t)i, logits[i])};
    uint32_t n = s->d.top_k ? keep_best(s->cand, s->vocab, s->d.top_k) : s->vocab;
    qsort(s->cand, n, sizeof *s->cand, by_logit);
    double sum = 0, top = s->cand[0].logit;
    for (uint32_t i = 0; i < n; i++)
        sum += s->prob[i] = exp(((double)s->cand[i].logit - top) / s->d.temperature);
    /* The smallest set whose share reaches top_p, and within it what is at least min_p of the best. */
    double reach = 0;
    uint32_t kept = 0;
    while (kept < n && reach < s->d.top_p * sum && (kept == 0 || s->prob[kept] >= s->d.min_p * s->prob[0]))
        reach += s->prob[kept++];
    double u = next_uniform(s->rng) * reach;
    for (uint32_t i = 0; i < kept; i++)
        if ((u -= s->prob[i]) < 0)
            return s->cand[i].id;
    return s->cand[kept - 1].id;
}
