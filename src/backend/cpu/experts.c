/* EXPERT_LINEAR: the (token, k) pairs by their expert, each expert's rows read once. Nothing here needs an instruction set. */
#include "backend/cpu/linear.h"
#include "base/mem.h"

#include <string.h>

/* An expert and its pairs. */
typedef struct group {
    const uint8_t *w;
    const lt__pair *pairs;
    uint64_t n, step, turns; /* rows a thread takes at a time, and how often until all are taken */
} group;

typedef struct expert_job {
    const lt__expert_isa *isa;
    const lt_op_args *args;
    lt_team *team;
    group *groups;
    lt__pair *pairs;
    uint64_t *count; /* of an expert's pairs, then where the next goes */
    uint64_t n_groups;
    bool quant;
    uint8_t *scratch; /* of the products */
    size_t scratch_each;
} expert_job;

static bool is_quant(const lt_op_args *a) { return lt_dtype_get(a->src[1].dtype)->kind == LT_DTYPE_KIND_QUANT; }
static uint64_t n_pairs(const lt_op_args *a) { return (uint64_t)(a->src[2].dim[0] * a->src[2].dim[1]); }
/* A token's experts are different ones as a rule: each pair of one token is a group. */
static bool is_one_token(const lt_op_args *a) { return a->src[2].dim[0] == 1; }
static uint64_t groups_most(const lt_op_args *a)
{
    return is_one_token(a) ? n_pairs(a) : lt__min_u64(n_pairs(a), (uint64_t)a->src[1].dim[0]);
}

static int64_t expert_at(const lt_op_args *a, int64_t t, int64_t k)
{
    const lt_view *ids = &a->src[2];
    const int32_t *row = (const int32_t *)(const void *)((const char *)lt_cpu_ptr(ids->addr) + t * ids->stride[0]);
    return (int64_t)row[k] - a->params.EXPERT_LINEAR.first;
}

static lt__pair pair_at(const lt_op_args *a, int64_t t, int64_t k)
{
    const lt_view *x = &a->src[0], *y = &a->dst;
    return (lt__pair){(const uint8_t *)lt_cpu_ptr(x->addr) + t * x->stride[0] + (x->ndim == 3 ? k * x->stride[1] : 0),
                      (uint8_t *)lt_cpu_ptr(y->addr) + t * y->stride[0] + k * y->stride[1]};
}

static group *add_group(expert_job *j, int64_t e, const lt__pair *pairs, uint64_t n)
{
    const lt_view *w = &j->args->src[1];
    group *g = &j->groups[j->n_groups++];
    *g = (group){.w = (const uint8_t *)lt_cpu_ptr(w->addr) + e * w->stride[0], .pairs = pairs, .n = n};
    return g;
}

static void group_one_token(expert_job *j)
{
    const lt_op_args *a = j->args;
    for (int64_t k = 0; k < a->src[2].dim[1]; k++) {
        const int64_t e = expert_at(a, 0, k);
        if (e < 0 || e >= a->src[1].dim[0])
            continue;
        j->pairs[k] = pair_at(a, 0, k);
        add_group(j, e, &j->pairs[k], 1);
    }
}

static void group_pairs(expert_job *j)
{
    const lt_op_args *a = j->args;
    const int64_t tokens = a->src[2].dim[0], each = a->src[2].dim[1], experts = a->src[1].dim[0];
    uint64_t at = 0;
    memset(j->count, 0, (size_t)experts * sizeof *j->count);
    for (int64_t i = 0; i < tokens * each; i++) {
        const int64_t e = expert_at(a, i / each, i % each);
        if (e >= 0 && e < experts)
            j->count[e]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        const uint64_t n = j->count[e];
        if (n)
            add_group(j, e, j->pairs + at, n);
        j->count[e] = at;
        at += n;
    }
    for (int64_t i = 0; i < tokens * each; i++) {
        const int64_t e = expert_at(a, i / each, i % each);
        if (e >= 0 && e < experts)
            j->pairs[j->count[e]++] = pair_at(a, i / each, i % each);
    }
}

/* So many pairs are quicker one by one, as the weights of a turn stay in the nearest cache: measured, 1.2 to 1.6 times for
 * three. One by one MXFP4 is all arithmetic. */
static uint64_t few(lt_dtype t) { return t == LT_DTYPE_MXFP4 ? 1 : 3; }

/* More rows of a float weight are a run of their own, in which threads wait for each other. */
static bool is_apart(const expert_job *j, const group *g) { return !j->quant && g->n > few(j->args->src[1].dtype); }

static void plan_turns(expert_job *j)
{
    const lt_view *w = &j->args->src[1];
    const uint64_t rows = (uint64_t)w->dim[1], cols = (uint64_t)w->dim[2];
    uint64_t products = 0;
    for (uint64_t i = 0; i < j->n_groups; i++)
        products += is_apart(j, &j->groups[i]) ? 0 : rows * j->groups[i].n;
    const uint64_t share = products / (4 * lt__team_threads(j->team)); /* four turns a thread, at least */
    for (uint64_t i = 0; i < j->n_groups; i++) {
        group *g = &j->groups[i];
        if (is_apart(j, g))
            continue;
        const uint64_t most = g->n <= few(w->dtype) ? lt__up16(LT_MATVEC_BYTES / (uint64_t)w->stride[1] + 1) : j->isa->quant->rows(w->dtype, cols);
        g->step = lt__min_u64(most, lt__up16(share / g->n + 1));
        g->turns = (rows + g->step - 1) / g->step;
    }
}

static void expert_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const expert_job *j = arg;
    const lt_view *w = &j->args->src[1];
    const uint64_t rows = (uint64_t)w->dim[1], cols = (uint64_t)w->dim[2];
    const size_t stride = (size_t)w->stride[1];
    lt__matvec_fn *const matvec = j->quant ? j->isa->matvec_quant : j->isa->matvec_float;
    uint64_t i = 0, before = 0; /* the group, and the turns of those before it */
    (void)ranks;
    for (;;) {
        const uint64_t turn = lt__team_next(j->team, 1);
        for (; i < j->n_groups && turn - before >= j->groups[i].turns; i++)
            before += j->groups[i].turns;
        if (i == j->n_groups)
            return;
        const group *g = &j->groups[i];
        const uint64_t r = (turn - before) * g->step, end = rows - r < g->step ? rows : r + g->step;
        if (g->n <= few(w->dtype)) {
            for (uint64_t p = 0; p < g->n; p++)
                matvec(w->dtype, g->w + r * stride, stride, end - r, cols, g->pairs[p].act, (float *)(void *)g->pairs[p].dst + r);
        } else {
            const lt__gemm m = {.t = w->dtype, .w = g->w, .pairs = g->pairs, .w_stride = stride, .rows = rows, .cols = cols, .tokens = g->n};
            j->isa->quant->run(&m, r, end, j->scratch + rank * j->scratch_each);
        }
    }
}

/* LINEAR of n rows by a float weight, wherever they lie. */
static lt_op_args linear_of(const lt_op_args *a, const uint8_t *matrix, uint64_t n)
{
    const lt_view *x = &a->src[0], *w = &a->src[1], *y = &a->dst;
    lt_op_args one = {.op = LT_OP_LINEAR, .n_src = 2, .name = a->name};
    one.src[0] = (lt_view){.dtype = x->dtype, .ndim = 2, .dim = {(int64_t)n, w->dim[2]}};
    one.src[1] = (lt_view){(lt_addr)(uintptr_t)matrix, w->dtype, 2, {w->dim[1], w->dim[2]}, {w->stride[1], w->stride[2]}};
    one.dst = (lt_view){.dtype = y->dtype, .ndim = 2, .dim = {(int64_t)n, y->dim[2]}};
    return one;
}

typedef struct layout { size_t pairs, groups, count, products; } layout; /* where each begins */

static layout layout_of(const lt_op_args *a)
{
    layout l = {.groups = n_pairs(a) * sizeof(lt__pair)};
    l.count = l.groups + groups_most(a) * sizeof(group);
    l.products = lt__round_up(l.count + (is_one_token(a) ? 0 : (size_t)a->src[1].dim[0] * sizeof(uint64_t)), 64);
    return l;
}

void lt__expert_linear(const lt__expert_isa *isa, const lt_op_args *args, lt_team *team, void *scratch)
{
    const layout l = layout_of(args);
    uint8_t *base = scratch;
    expert_job j = {.isa = isa, .args = args, .team = team, .quant = is_quant(args), .pairs = (lt__pair *)(void *)(base + l.pairs),
                    .groups = (group *)(void *)(base + l.groups), .count = (uint64_t *)(void *)(base + l.count), .scratch = base + l.products};
    if (j.quant)
        j.scratch_each = isa->quant->scratch(args->src[1].dtype, (uint64_t)args->src[1].dim[2]);
    (is_one_token(args) ? group_one_token : group_pairs)(&j);
    plan_turns(&j);
    uint64_t turns = 0;
    for (uint64_t i = 0; i < j.n_groups; i++)
        turns += j.groups[i].turns;
    if (turns) /* a slice may be nobody's */
        lt__team_run(team, expert_rank, &j);
    for (uint64_t i = 0; i < j.n_groups; i++)
        if (is_apart(&j, &j.groups[i])) {
            const lt_op_args one = linear_of(args, j.groups[i].w, j.groups[i].n);
            isa->real->run(&one, j.groups[i].pairs, team, j.scratch);
        }
}

size_t lt__expert_linear_scratch(const lt__expert_isa *isa, const lt_op_args *args, uint32_t threads)
{
    const size_t lists = layout_of(args).products;
    if (is_one_token(args))
        return lists;
    if (is_quant(args))
        return lists + threads * isa->quant->scratch(args->src[1].dtype, (uint64_t)args->src[1].dim[2]);
    const lt_op_args most = linear_of(args, NULL, n_pairs(args));
    return lists + isa->real->scratch(&most, threads);
}
