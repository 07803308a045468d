/* Logits of every architecture and dtype against an independent reference (reference.py), and
 * the proof that the tolerances would notice: planted bugs must be far outside of them. */
#include "golden/golden.h"

#include <math.h>

/* Error of one entry under the given options. Float models keep a float cache: their tolerance
 * is far below what rounding to f16 costs. */
static double error_of(const json_t *e, exec_opts o)
{
    lt_model *m = golden_model(e);
    golden g = golden_load(e);
    float *got = malloc(g.n * m->hp.vocab * sizeof *got);
    lt_err err;
    o.kv = is_float(e) ? LT_DTYPE_F32 : LT_DTYPE_F16;
    if (exec_logits(m, g.ids, (uint32_t)g.n, &o, got, &err) != LT_OK)
        fail_msg("%s", err.text);
    double d = golden_error(&g, got, m->hp.vocab);
    free(got);
    golden_free(&g);
    lt_model_close(m);
    return d;
}

static void every_architecture_and_dtype(void **state)
{
    (void)state;
    json_t *e;
    size_t i, over = 0;
    double worst = 0, sum = 0, peers = 0;
    json_array_foreach(json_object_get(manifest, "models"), i, e) {
        double d = error_of(e, (exec_opts){.isa = lt__cpu_isa_best()}), tol = number(e, "tolerance");
        json_t *peer = json_object_get(e, "peer_nmse");
        if (json_is_number(peer) && !is_float(e)) {
            double ratio = d / json_number_value(peer);
            worst = ratio > worst ? ratio : worst;
            sum += ratio;
            peers++;
        }
        if (!(d <= tol)) {
            printf("%s: NMSE %.4g; tolerance %.4g\n", text_of(e, "name"), d, tol);
            over++;
        }
    }
    printf("%zu models; error over the peer's on quantised weights: mean %.3f, worst %.3f\n", i, sum / peers, worst);
    assert_int_equal(over, 0);
}

/* Passes of 5 tokens, slices of 3 experts, the fastest rows of this machine: not a bit may change. */
static void passes_and_instruction_sets_change_no_bit(void **state)
{
    (void)state;
    json_t *e;
    size_t i;
    json_array_foreach(json_object_get(manifest, "models"), i, e) {
        if (strcmp(text_of(e, "dtype"), "mixed") != 0)
            continue;
        lt_model *m = golden_model(e);
        golden g = golden_load(e);
        size_t count = g.n * m->hp.vocab;
        float *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
        lt_err err;
        exec_opts all = {.kv = LT_DTYPE_F16, .isa = LT_CPU_ISA_REF}, cut = {.kv = LT_DTYPE_F16, .isa = lt__cpu_isa_best(), .pass = 5, .slice = 3};
        assert_int_equal(exec_logits(m, g.ids, (uint32_t)g.n, &all, a, &err), LT_OK);
        assert_int_equal(exec_logits(m, g.ids, (uint32_t)g.n, &cut, b, &err), LT_OK);
        assert_memory_equal(a, b, count * sizeof *a);
        free(a);
        free(b);
        golden_free(&g);
        lt_model_close(m);
    }
}

/* What reference.py measured with a bug in it. */
static void tolerances_would_notice(void **state)
{
    (void)state;
    static const struct { const char *names, *bugs[11]; } all[] = { /* models whose name begins so */
        {"llama", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"qwen2", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"qwen3-", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"gemma2", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"gemma3", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"phi3", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum"}},
        {"mixtral", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum", "next_expert", "shares_of_others"}},
        {"qwen3moe", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum", "next_expert", "shares_of_others"}},
        {"olmoe", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum", "next_expert", "shares_of_others"}},
        {"gpt-oss", {"rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum", "next_expert", "shares_of_others", "no_clamp",
                     "no_sinks", "ramp_rounded", "bias_of_next"}},
    };
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        for (size_t b = 0; all[a].bugs[b]; b++) {
            json_t *e;
            size_t i;
            double best = 0;
            json_array_foreach(json_object_get(manifest, "models"), i, e)
                if (strncmp(text_of(e, "name"), all[a].names, strlen(all[a].names)) == 0)
                    best = fmax(best, number(json_object_get(e, "bugs"), all[a].bugs[b]) / number(e, "tolerance"));
            if (best < 10)
                fail_msg("%s: no tolerance would notice %s: %.3g times at best", all[a].names, all[a].bugs[b], best);
        }
}

/* Bugs in the graph itself. */
static void edit_rope(lt_graph *g, void *user)
{
    (void)user; /* half of a head turned as if it were the other style */
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_ROPE)
            g->nodes[i].params.ROPE.style = g->nodes[i].params.ROPE.style == LT_ROPE_PAIRS ? LT_ROPE_HALVES : LT_ROPE_PAIRS;
}

static void edit_eps(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_RMS_NORM)
            g->nodes[i].params.RMS_NORM.eps *= 100;
}

/* Gate and up trade places in the products, so that the unit's two sources do. */
static void edit_gate(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++) {
        lt_node *n = &g->nodes[i];
        if (n->op != LT_OP_SILU_MUL && n->op != LT_OP_GELU_MUL && n->op != LT_OP_CLAMP_MUL)
            continue;
        lt_tid gate = n->src[0], up = n->src[1];
        lt_tensor *tg = &g->tensors[gate], *tu = &g->tensors[up];
        if (tg->base != LT_NO_TENSOR && tg->base == tu->base) { /* phi3: the windows trade */
            uint64_t at = tg->base_offset;
            tg->base_offset = tu->base_offset;
            tu->base_offset = at;
            continue;
        }
        if (tg->base != LT_NO_TENSOR) /* of all experts of a token, flat */
            gate = tg->base, up = tu->base;
        lt_node *wg = NULL, *wu = NULL;
        for (size_t k = 0; k < i; k++) {
            bool product = g->nodes[k].op == LT_OP_LINEAR || g->nodes[k].op == LT_OP_EXPERT_LINEAR;
            if (product && g->nodes[k].dst == gate)
                wg = &g->nodes[k];
            if (product && g->nodes[k].dst == up)
                wu = &g->nodes[k];
        }
        lt_tid w = wg->src[1];
        wg->src[1] = wu->src[1];
        wu->src[1] = w;
    }
}

static void edit_window(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_ATTENTION && g->nodes[i].params.ATTENTION.window)
            g->nodes[i].params.ATTENTION.window++;
}

static void edit_attn_cap(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_ATTENTION)
            g->nodes[i].params.ATTENTION.cap = 0;
}

static void edit_logit_cap(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_SOFTCAP)
            g->nodes[i].params.SOFTCAP.cap *= 2;
}

/* Products of down and shares follow the first layer's choice. */
static void edit_ids(lt_graph *g, void *user)
{
    (void)user;
    lt_tid first = LT_NO_TENSOR;
    for (size_t i = 0; i < g->n_nodes; i++) {
        lt_node *n = &g->nodes[i];
        if (n->op == LT_OP_TOP_K && first == LT_NO_TENSOR)
            first = n->dst;
        if (n->op == LT_OP_TOP_SHARE)
            n->src[1] = first;
        if (n->op == LT_OP_EXPERT_LINEAR && strstr(n->name, "down"))
            n->src[2] = first;
    }
}

static void edit_shares(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_TOP_SHARE)
            g->nodes[i].params.TOP_SHARE.all = !g->nodes[i].params.TOP_SHARE.all;
}

static void edit_clamp(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_CLAMP_MUL)
            g->nodes[i].params.CLAMP_MUL.limit = 1e30f;
}

static void edit_sinks(lt_graph *g, void *user)
{
    (void)user;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == LT_OP_ATTENTION)
            g->nodes[i].n_src = 4;
}

/* The first expert's part goes behind the last one's. */
static void turn_experts(const lt_weight *w, void *bytes, const char *end)
{
    size_t n = strlen(w->name), k = strlen(end);
    if (n < k || strcmp(w->name + n - k, end) != 0)
        return;
    uint64_t each = w->bytes / w->dim[0];
    char *first = malloc(each);
    memcpy(first, bytes, each);
    memmove(bytes, (char *)bytes + each, w->bytes - each);
    memcpy((char *)bytes + w->bytes - each, first, each);
    free(first);
}

static void spoil_experts(const lt_weight *w, void *bytes) { turn_experts(w, bytes, "ffn_up_exps.weight"); }
static void spoil_biases(const lt_weight *w, void *bytes) { turn_experts(w, bytes, "ffn_down_exps.bias"); }

/* Adds the minimum of each super-block where it should be taken off. */
static void spoil_q4_k(const lt_weight *w, void *bytes)
{
    for (uint64_t at = 0; w->info->dtype == LT_DTYPE_Q4_K && at < w->info->bytes; at += 144)
        ((uint8_t *)bytes)[at + 3] ^= 0x80; /* the sign of dmin, an f16 */
}

static void planted_bugs_turn_red(void **state)
{
    (void)state;
    static const struct { const char *what, *suffix; void (*edit)(lt_graph *, void *); void (*spoil)(const lt_weight *, void *); } bugs[] = {
        {"rope style", "-F32", edit_rope, NULL},
        {"norm eps", "-F32", edit_eps, NULL},
        {"gate and up", "-F32", edit_gate, NULL},
        {"gate and up", "-Q4_K", edit_gate, NULL},
        {"rope style", "-Q4_K", edit_rope, NULL},
        {"Q4_K minimum", "-Q4_K", NULL, spoil_q4_k},
        {"window", "gemma3-far", edit_window, NULL},
        {"window", "gemma2-far", edit_window, NULL},
        {"cap of scores", "gemma2-F32", edit_attn_cap, NULL},
        {"cap of logits", "gemma2-F32", edit_logit_cap, NULL},
        {"cap of scores", "gemma2-caps-Q4_K", edit_attn_cap, NULL},
        {"cap of logits", "gemma2-caps-Q4_K", edit_logit_cap, NULL},
        {"choice of experts", "mixtral-F32", edit_ids, NULL},
        {"choice of experts", "qwen3moe-Q4_K", edit_ids, NULL},
        {"choice of experts", "gpt-oss-published-Q8_0", edit_ids, NULL},
        {"shares", "mixtral-Q4_K", edit_shares, NULL},
        {"shares", "qwen3moe-many", edit_shares, NULL},
        {"shares", "gpt-oss-published-Q8_0", edit_shares, NULL},
        {"shares", "olmoe-Q8_0", edit_shares, NULL},
        {"up of an expert", "mixtral-Q8_0", NULL, spoil_experts},
        {"up of an expert", "qwen3moe-mixed", NULL, spoil_experts},
        {"up of an expert", "gpt-oss-published-F16", NULL, spoil_experts},
        {"bias of an expert", "gpt-oss-published-Q8_0", NULL, spoil_biases},
        {"clamp", "gpt-oss-published-Q8_0", edit_clamp, NULL},
        {"clamp", "gpt-oss-F32", edit_clamp, NULL},
        {"sinks", "gpt-oss-published-Q8_0", edit_sinks, NULL},
        {"window", "gpt-oss-far", edit_window, NULL},
    };
    json_t *e;
    size_t i, tried = 0;
    json_array_foreach(json_object_get(manifest, "models"), i, e) {
        const char *name = text_of(e, "name");
        for (size_t b = 0; b < sizeof bugs / sizeof *bugs; b++) {
            size_t n = strlen(name), k = strlen(bugs[b].suffix);
            if (n < k || strcmp(name + n - k, bugs[b].suffix) != 0)
                continue;
            double d = error_of(e, (exec_opts){.isa = lt__cpu_isa_best(), .edit = bugs[b].edit, .spoil = bugs[b].spoil});
            tried++;
            if (d < 10 * number(e, "tolerance"))
                fail_msg("%s: %s wrong, and NMSE only %.3g; tolerance %.3g", name, bugs[b].what, d,
                         number(e, "tolerance"));
        }
    }
    assert_int_equal(tried, 87);
}

/* A real model: some columns of the head, and the best token where it leads clearly. */
static void real_model(const char *label, const char *variable)
{
    const char *path = getenv(variable);
    json_t *e = NULL, *x;
    size_t i, right = 0, clear = 0;
    if (!path) {
        printf("%s is not set\n", variable);
        skip();
    }
    json_array_foreach(json_object_get(manifest, "real"), i, x)
        if (strcmp(text_of(x, "name"), label) == 0)
            e = x;
    assert_non_null(e);
    if (!sha256_is(path, text_of(e, "sha256"))) {
        printf("%s is another file than the expected logits are of\n", path);
        skip();
    }
    golden g = golden_load(e);
    lt_model *m;
    lt_err err;
    assert_int_equal(lt_model_open(ctx, path, &m, &err), LT_OK);
    size_t vocab = m->hp.vocab;
    float *got = malloc(g.n * vocab * sizeof *got);
    exec_opts o = {.kv = LT_DTYPE_F16, .isa = lt__cpu_isa_best()};
    if (exec_logits(m, g.ids, (uint32_t)g.n, &o, got, &err) != LT_OK)
        fail_msg("%s", err.text);
    for (size_t t = 0; t < g.n; t++) {
        size_t best = 0;
        for (size_t c = 0; c < vocab; c++)
            if (got[t * vocab + c] > got[t * vocab + best])
                best = c;
        if (json_number_value(json_array_get(json_object_get(e, "lead"), t)) < 1)
            continue;
        clear++;
        right += (json_int_t)best == json_integer_value(json_array_get(json_object_get(e, "argmax"), t));
    }
    double d = golden_error(&g, got, vocab), peer = number(e, "peer_nmse");
    printf("%s: NMSE %.4g, peer %.4g, ratio %.3f; %zu of %zu clear choices equal\n", label, d, peer, d / peer, right, clear);
    free(got);
    golden_free(&g);
    lt_model_close(m);
    assert_true(d <= number(e, "tolerance"));
    assert_int_equal(right, clear);
}

static void smollm2(void **state)
{
    (void)state;
    real_model("smollm2", "LT_TEST_SMOLLM2");
}

static void gemma3(void **state)
{
    (void)state;
    real_model("gemma3", "LT_TEST_GEMMA3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_and_dtype),
        cmocka_unit_test(passes_and_instruction_sets_change_no_bit),
        cmocka_unit_test(tolerances_would_notice),
        cmocka_unit_test(planted_bugs_turn_red),
        cmocka_unit_test(smollm2),
        cmocka_unit_test(gemma3),
    };
    return cmocka_run_group_tests_name("golden logits", tests, golden_setup, golden_teardown);
}
