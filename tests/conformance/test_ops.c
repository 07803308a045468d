/* The ops of one token by itself (norm, rotation, elementwise, row picking) on every device. */
#include "rig.h"

#include "graph/op.h"

#define BOUND 1e-12 /* NMSE of f32 arithmetic: relative error 1e-6 */

/* One launch of up to two sources with f32 data, and what became of it. */
typedef struct launch {
    rig_case c;
    float   *x, *z, *y; /* src0, src1, dst */
    float   *blank;
} launch;

/* src0 and dst are [d0, d1, d2] windows of a wider matrix when pad > 0. */
static lt_view padded(uint32_t ndim, int64_t d0, int64_t d1, int64_t d2, int64_t pad)
{
    lt_view v = view(LT_DTYPE_F32, ndim, d0, d1, d2);
    if (ndim > 1)
        v.stride[0] += pad * 4;
    if (ndim > 2) {
        v.stride[1] += pad * 4;
        v.stride[0] += d1 * pad * 4;
    }
    return v;
}

static void launch_init(launch *l, lt_op op, const lt_view *src0, const lt_view *src1, const lt_view *dst,
                        data_kind kind, bool in_place)
{
    *l = (launch){.c.args = {.op = op, .n_src = src1 ? 2 : 1, .name = lt_op_get(op)->name, .src = {*src0}, .dst = *dst}};
    l->c.src_bytes[0] = view_bytes(src0), l->c.dst_bytes = view_bytes(dst);
    l->x = rnd_floats(l->c.src_bytes[0] / 4, kind);
    l->blank = calloc(1, l->c.dst_bytes), l->y = malloc(l->c.dst_bytes);
    if (src1) {
        l->c.args.src[1] = *src1, l->c.src_bytes[1] = view_bytes(src1);
        l->z = rnd_floats(l->c.src_bytes[1] / 4, kind);
        l->c.src[1] = l->z;
    }
    l->c.dst = in_place ? l->x : l->blank;
    l->c.src[0] = in_place ? NULL : l->x;
}

static void launch_free(launch *l) { free(l->x), free(l->z), free(l->y), free(l->blank); }

static const int64_t columns[] = {1, 7, 8, 31, 64, 96, 128, 255, 256, 257, 300, 576, 640, 1000, 2048};
#define N_COLUMNS ((int)(sizeof columns / sizeof *columns))

/* ---- RMS_NORM ---- */

static double norm_error(const launch *l, double eps, bool swapped)
{
    const lt_view *v = &l->c.args.src[0];
    int64_t heads = v->ndim == 3 ? v->dim[1] : 1, cols = v->dim[v->ndim - 1];
    double worst = 0, *want = malloc((size_t)cols * sizeof *want);
    for (int64_t i = 0; i < v->dim[0] * heads; i++) {
        int64_t at = (i / heads * v->stride[0] + (v->ndim == 3 ? i % heads * v->stride[1] : 0)) / 4;
        double ss = 0;
        for (int64_t k = 0; k < cols; k++)
            ss += (double)l->x[at + k] * l->x[at + k];
        for (int64_t k = 0; k < cols; k++)
            want[k] = l->x[at + k] / sqrt(ss / cols + eps) * l->z[swapped ? cols - 1 - k : k];
        worst = fmax(worst, nmse(want, l->y + at, (size_t)cols));
    }
    free(want);
    return worst;
}

static void rms_norm(void **state)
{
    (void)state;
    for (int kind = 0; kind < DATA_KINDS; kind++) {
        for (int k = 0; k < N_COLUMNS; k++) {
            for (int form = 0; form < 4; form++) {
                uint32_t ndim = form & 1 ? 3 : 2;
                int64_t tokens = 1 + (k + form) % 9, heads = 1 + k % 4, pad = form & 2 ? 5 : 0;
                lt_view x = ndim == 3 ? padded(3, tokens, heads, columns[k], pad) : padded(2, tokens, columns[k], 0, pad);
                lt_view w = view(LT_DTYPE_F32, 1, columns[k], 0, 0);
                launch l;
                launch_init(&l, LT_OP_RMS_NORM, &x, &w, &x, (data_kind)kind, form == 3 || form == 0);
                l.c.args.params.RMS_NORM.eps = k % 2 ? 1e-6f : 1e-5f;
                rig_check(&l.c, "RMS_NORM", l.y);
                if (kind <= DATA_HEAVY)
                    assert_within("RMS_NORM", norm_error(&l, l.c.args.params.RMS_NORM.eps, false), BOUND);
                launch_free(&l);
            }
        }
    }
    lt_view x = view(LT_DTYPE_F32, 2, 5, 576, 0), w = view(LT_DTYPE_F32, 1, 576, 0, 0);
    launch l;
    launch_init(&l, LT_OP_RMS_NORM, &x, &w, &x, DATA_NORMAL, false);
    l.c.args.params.RMS_NORM.eps = 1e-5f;
    rig_run(&g_rig.device[0], &l.c, l.y);
    assert_caught("norm with eps 1e-3 for 1e-5", norm_error(&l, 1e-3, false), BOUND);
    assert_caught("norm weight reversed", norm_error(&l, 1e-5, true), BOUND);
    for (size_t i = 0; i < l.c.src_bytes[0] / 4; i++) /* a quiet layer, where eps matters as much as the data */
        l.x[i] *= 0.003f;
    rig_run(&g_rig.device[0], &l.c, l.y);
    assert_within("RMS_NORM of small data", norm_error(&l, 1e-5f, false), BOUND);
    assert_caught("norm with eps 1e-6 for 1e-5, small data", norm_error(&l, 1e-6, false), BOUND);
    launch_free(&l);
}

/* ---- ROPE ---- */

static void rope_table(float *table, int64_t tokens, uint32_t rotated)
{
    for (int64_t t = 0; t < tokens; t++) {
        for (uint32_t i = 0; i < rotated / 2; i++) {
            double angle = (double)(t * 13 + 5) * pow(10000, -2.0 * i / rotated);
            table[(t * (rotated / 2) + i) * 2] = (float)cos(angle);
            table[(t * (rotated / 2) + i) * 2 + 1] = (float)sin(angle);
        }
    }
}

/* As complex numbers: (a + ib) times e^(i angle). shift: position off by that much. */
static double rope_error(const launch *l, lt_rope_style style, double shift, double sign)
{
    const lt_view *v = &l->c.args.src[0];
    uint32_t rotated = l->c.args.params.ROPE.rotated;
    int64_t heads = v->dim[1], dim = v->dim[2];
    double worst = 0, *want = malloc((size_t)dim * sizeof *want);
    for (int64_t i = 0; i < v->dim[0] * heads; i++) {
        int64_t at = (i / heads * v->stride[0] + i % heads * v->stride[1]) / 4;
        for (int64_t k = 0; k < dim; k++)
            want[k] = l->x[at + k];
        for (uint32_t p = 0; p < rotated / 2; p++) {
            uint32_t ia = style == LT_ROPE_PAIRS ? 2 * p : p, ib = style == LT_ROPE_PAIRS ? ia + 1 : p + rotated / 2;
            double angle = ((double)(i / heads * 13 + 5) + shift) * pow(10000, -2.0 * p / rotated) * sign;
            double a = l->x[at + ia], b = l->x[at + ib];
            want[ia] = a * cos(angle) - b * sin(angle);
            want[ib] = a * sin(angle) + b * cos(angle);
        }
        worst = fmax(worst, nmse(want, l->y + at, (size_t)dim));
    }
    free(want);
    return worst;
}

static void rope(void **state)
{
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {64, 32}, {80, 80}, {96, 96}, {128, 128}, {256, 256}, {128, 2}, {72, 36}, {14, 6}, {512, 512}};
    bool planted = false;
    for (int kind = 0; kind < DATA_KINDS; kind++) {
        for (int k = 0; k < 10; k++) {
            for (int form = 0; form < 4; form++) {
                int64_t tokens = 1 + (k * 3 + form) % 9, pad = form & 2 ? 6 : 0;
                lt_rope_style style = form & 1 ? LT_ROPE_HALVES : LT_ROPE_PAIRS;
                lt_view x = padded(3, tokens, 1 + k % 5, dims[k][0], pad);
                lt_view table = view(LT_DTYPE_F32, 3, tokens, dims[k][1] / 2, 2);
                launch l;
                launch_init(&l, LT_OP_ROPE, &x, &table, &x, (data_kind)kind, form == 1 || form == 2);
                l.c.args.params.ROPE = (lt_rope_params){style, dims[k][1]};
                rope_table(l.z, tokens, dims[k][1]);
                rig_check(&l.c, "ROPE", l.y);
                if (kind <= DATA_HEAVY)
                    assert_within("ROPE", rope_error(&l, style, 0, 1), BOUND);
                if (kind == DATA_NORMAL && !planted && tokens > 2) {
                    assert_caught("rope position off by one", rope_error(&l, style, 1, 1), BOUND);
                    assert_caught("rope turns backwards", rope_error(&l, style, 0, -1), BOUND);
                    assert_caught("rope halves for pairs", rope_error(&l, !style, 0, 1), BOUND);
                    planted = true;
                }
                launch_free(&l);
            }
        }
    }
    assert_true(planted);
}

/* ---- elementwise ---- */

static double value64(lt_op op, double x, double z)
{
    switch (op) {
    case LT_OP_SILU_MUL: return x / (1 + exp(-x)) * z;
    case LT_OP_GELU_MUL: return x / (1 + exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))) * z;
    case LT_OP_SCALE:    return x * z;
    case LT_OP_SOFTCAP:  return z * tanh(x / z);
    default:             return x + z;
    }
}

static double elementwise_error(const launch *l, lt_op op, bool swapped)
{
    const lt_view *v = &l->c.args.dst, *a = &l->c.args.src[0], *b = &l->c.args.src[1];
    double worst = 0, *want = malloc((size_t)v->dim[1] * sizeof *want);
    for (int64_t t = 0; t < v->dim[0]; t++) {
        for (int64_t i = 0; i < v->dim[1]; i++) {
            double x = l->x[t * a->stride[0] / 4 + i], z;
            if (op == LT_OP_SCALE)
                z = l->c.args.params.SCALE.factor;
            else if (l->c.args.op == LT_OP_SOFTCAP)
                z = l->c.args.params.SOFTCAP.cap;
            else
                z = l->z[(l->c.args.op == LT_OP_ADD_ROW ? 0 : t * b->stride[0] / 4) + i];
            want[i] = swapped ? value64(op, z, x) : value64(op, x, z);
        }
        worst = fmax(worst, nmse(want, l->y + t * v->stride[0] / 4, (size_t)v->dim[1]));
    }
    free(want);
    return worst;
}

static void elementwise(void **state)
{
    (void)state;
    static const lt_op ops[] = {LT_OP_ADD, LT_OP_ADD_ROW, LT_OP_SILU_MUL, LT_OP_GELU_MUL, LT_OP_SCALE, LT_OP_SOFTCAP};
    for (int o = 0; o < 6; o++) {
        for (int kind = 0; kind < DATA_KINDS; kind++) {
            for (int k = 0; k < N_COLUMNS; k++) {
                for (int form = 0; form < 3; form++) { /* apart, in place, windows of wider matrices */
                    int64_t tokens = 1 + (k * 2 + form) % 9, pad = form == 2 ? 3 : 0;
                    lt_view x = padded(2, tokens, columns[k], 0, pad), y = padded(2, tokens, columns[k], 0, pad * 2);
                    lt_view z = ops[o] == LT_OP_ADD_ROW ? view(LT_DTYPE_F32, 1, columns[k], 0, 0)
                                                        : padded(2, tokens, columns[k], 0, pad * 3);
                    launch l;
                    launch_init(&l, ops[o], &x, ops[o] == LT_OP_SCALE || ops[o] == LT_OP_SOFTCAP ? NULL : &z, form == 1 ? &x : &y,
                                (data_kind)kind, form == 1);
                    if (ops[o] == LT_OP_SCALE)
                        l.c.args.params.SCALE.factor = k == 3 ? -0.0f : 25.298221f;
                    if (ops[o] == LT_OP_SOFTCAP)
                        l.c.args.params.SOFTCAP.cap = k % 3 ? 30 : 0.5f;
                    rig_check(&l.c, lt_op_get(ops[o])->name, l.y);
                    /* A row of a few can be all tail, where the gates keep fewer digits: see below. */
                    bool gate = ops[o] == LT_OP_SILU_MUL || ops[o] == LT_OP_GELU_MUL;
                    if (kind <= DATA_HEAVY && (!gate || columns[k] >= 64))
                        assert_within(lt_op_get(ops[o])->name, elementwise_error(&l, ops[o], false), BOUND);
                    launch_free(&l);
                }
            }
        }
    }
}

static void elementwise_planted(void **state)
{
    (void)state;
    lt_view v = view(LT_DTYPE_F32, 2, 4, 576, 0);
    launch l;
    launch_init(&l, LT_OP_SILU_MUL, &v, &v, &v, DATA_NORMAL, false);
    rig_run(&g_rig.device[0], &l.c, l.y);
    assert_caught("gate and up swapped", elementwise_error(&l, LT_OP_SILU_MUL, true), BOUND);
    assert_caught("gelu for silu", elementwise_error(&l, LT_OP_GELU_MUL, false), BOUND);
    launch_free(&l);
    launch_init(&l, LT_OP_GELU_MUL, &v, &v, &v, DATA_NORMAL, false);
    rig_run(&g_rig.device[0], &l.c, l.y);
    assert_caught("gelu: gate and up swapped", elementwise_error(&l, LT_OP_GELU_MUL, true), BOUND);
    /* erf instead of tanh differs by 1e-4 or so: must not pass either */
    double err = 0, energy = 0;
    for (int i = 0; i < 4 * 576; i++) {
        double want = 0.5 * l.x[i] * (1 + erf(l.x[i] / sqrt(2))) * l.z[i];
        err += (want - l.y[i]) * (want - l.y[i]), energy += want * want;
    }
    assert_caught("gelu by erf, not tanh", err / energy, BOUND);
    launch_free(&l);
}

/* Every float of a coarse grid through the gates: the whole range of exp, both tails. */
static void gates_over_the_whole_range(void **state)
{
    (void)state;
    const int64_t n = 1 << 16;
    lt_view v = view(LT_DTYPE_F32, 2, 1, n, 0);
    for (int o = 0; o < 2; o++) {
        launch l;
        launch_init(&l, o ? LT_OP_GELU_MUL : LT_OP_SILU_MUL, &v, &v, &v, DATA_NORMAL, false);
        for (int64_t i = 0; i < n; i++) {
            l.x[i] = lt__bits_f32((uint32_t)i << 16 | (uint32_t)(i & 0xffff));
            l.z[i] = 1;
        }
        rig_check(&l.c, "gate", l.y);
        for (int64_t i = 0; i < n; i++) {
            double x = l.x[i], want = value64(l.c.args.op, x, 1);
            if (isnan(x) || isinf(x))
                continue;
            /* exp turns the absolute error of its argument into a relative one; past its range, 0 */
            double argument = fmin(100, fabs(o ? 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x) : x));
            if (!(fabs(l.y[i] - want) <= 0x1p-23 * (4 + 2 * argument) * fabs(want) + 1e-35))
                fail_msg("%s of %.9g is %.9g, expected %.9g", l.c.args.name, x, l.y[i], want);
        }
        launch_free(&l);
    }
}

/* Every float of a coarse grid: both sides of the seam between the polynomial and exp, and both ends. */
static void softcap_over_the_whole_range(void **state)
{
    (void)state;
    static const float caps[] = {1, 30, 50, 0.001f};
    const int64_t n = 1 << 16;
    lt_view v = view(LT_DTYPE_F32, 2, 1, n, 0);
    double worst = 0;
    for (int k = 0; k < 4; k++) {
        launch l;
        launch_init(&l, LT_OP_SOFTCAP, &v, NULL, &v, DATA_NORMAL, k == 2);
        l.c.args.params.SOFTCAP.cap = caps[k];
        for (int64_t i = 0; i < n; i++)
            l.x[i] = lt__bits_f32((uint32_t)i << 16 | (uint32_t)(i & 0xffff));
        rig_check(&l.c, "SOFTCAP", l.y);
        for (int64_t i = 0; i < n; i++) {
            double x = l.x[i], want = (double)caps[k] * tanh(x / (double)caps[k]), ulps = fabs(l.y[i] - want) / (0x1p-23 * fabs(want));
            if (isnan(x) ? !isnan(l.y[i]) : !(fabs(l.y[i] - want) <= 0x1p-23 * 3 * fabs(want) + 1e-42))
                fail_msg("SOFTCAP %g of %.9g is %.9g, expected %.9g", caps[k], x, l.y[i], want);
            if (fabs(want) > 1e-36 && ulps > worst)
                worst = ulps;
        }
        launch_free(&l);
    }
    print_message("SOFTCAP: within %.2f units of the last place\n", worst);
}

static void softcap_planted(void **state)
{
    (void)state;
    lt_view v = view(LT_DTYPE_F32, 2, 4, 576, 0);
    launch l;
    launch_init(&l, LT_OP_SOFTCAP, &v, NULL, &v, DATA_NORMAL, false);
    for (int i = 0; i < 4 * 576; i++)
        l.x[i] *= 20; /* as logits are */
    l.c.args.params.SOFTCAP.cap = 30;
    rig_run(&g_rig.device[0], &l.c, l.y);
    assert_within("SOFTCAP", elementwise_error(&l, LT_OP_SOFTCAP, false), BOUND);
    assert_caught("cap and value swapped", elementwise_error(&l, LT_OP_SOFTCAP, true), BOUND);
    double clamped = 0, bare = 0, energy = 0;
    for (int i = 0; i < 4 * 576; i++) {
        double y = l.y[i], x = l.x[i];
        clamped += pow(fmax(-30, fmin(30, x)) - y, 2), bare += pow(30 * tanh(x) - y, 2), energy += y * y;
    }
    assert_caught("clamped, not capped", clamped / energy, BOUND);
    assert_caught("not divided by the cap", bare / energy, BOUND);
    l.c.args.params.SOFTCAP.cap = 50;
    assert_caught("another cap", elementwise_error(&l, LT_OP_SOFTCAP, false), BOUND);
    launch_free(&l);
}

static void scale_of_any_dimensions(void **state)
{
    (void)state;
    for (uint32_t ndim = 1; ndim <= 4; ndim++) {
        lt_view v = {.dtype = LT_DTYPE_F32, .ndim = ndim};
        int64_t bytes = 4;
        for (uint32_t i = ndim; i-- > 0;) {
            v.dim[i] = 2 + i * 3, v.stride[i] = bytes;
            bytes = v.dim[i] * bytes + (i ? 8 : 0);
        }
        launch l;
        launch_init(&l, LT_OP_SCALE, &v, NULL, &v, DATA_NORMAL, false);
        l.c.args.params.SCALE.factor = 3;
        rig_check(&l.c, "SCALE", l.y);
        size_t scaled = 0, elems = 1;
        for (uint32_t i = 0; i < ndim; i++)
            elems *= (size_t)v.dim[i];
        for (size_t i = 0; i < l.c.dst_bytes / 4; i++) {
            assert_true(l.y[i] == l.x[i] * 3 || l.y[i] == 0);
            scaled += l.y[i] != 0;
        }
        assert_int_equal(scaled, elems); /* and nothing between the rows */
        launch_free(&l);
    }
}

/* ---- TAKE_ROWS ---- */

static void take_rows(void **state)
{
    (void)state;
    for (int k = 0; k < N_COLUMNS; k++) {
        int64_t rows = 9, n = 1 + k % 12, cols = columns[k];
        lt_view x = padded(2, rows, cols, 0, k % 4), idx = view(LT_DTYPE_I32, 1, n, 0, 0), y = padded(2, n, cols, 0, k % 3);
        launch l;
        launch_init(&l, LT_OP_TAKE_ROWS, &x, &idx, &y, DATA_WILD, false);
        int32_t *pick = (int32_t *)(void *)l.z;
        for (int64_t i = 0; i < n; i++)
            pick[i] = i == 0 ? (int32_t)rows - 1 : (int32_t)rnd_below((uint32_t)rows);
        rig_check(&l.c, "TAKE_ROWS", l.y);
        for (int64_t i = 0; i < n; i++)
            assert_memory_equal(l.y + i * y.stride[0] / 4, l.x + pick[i] * x.stride[0] / 4, (size_t)cols * 4);
        launch_free(&l);
    }
}

static void a_row_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, 4, INT32_MAX, INT32_MIN};
    for (int d = 0; d < g_rig.n; d++) {
        for (int i = 0; i < 4; i++) {
            rig_device *dev = &g_rig.device[d];
            lt_queue *q;
            lt_err err = {0};
            lt_op_args a = {.op = LT_OP_TAKE_ROWS, .n_src = 2, .name = "head.rows"};
            dev->used = 0;
            a.src[0] = view(LT_DTYPE_F32, 2, 4, 8, 0), a.src[1] = view(LT_DTYPE_I32, 1, 1, 0, 0);
            a.dst = view(LT_DTYPE_F32, 2, 1, 8, 0);
            a.src[0].addr = rig_place(dev, 128), a.src[1].addr = rig_place(dev, 4), a.dst.addr = rig_place(dev, 32);
            RIG_OK(lt_queue_create(dev->dev, LT_QUEUE_COMPUTE, &q, &e_));
            RIG_OK(lt_queue_copy_in(q, a.src[1].addr, &bad[i], 4, &e_));
            RIG_OK(lt__queue_launch(q, &a, &e_));
            assert_int_equal(lt_queue_sync(q, &err), LT_E_INVALID);
            assert_non_null(strstr(err.text, "head.rows"));
            lt_queue_destroy(q);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(rope),
        cmocka_unit_test(elementwise),
        cmocka_unit_test(elementwise_planted),
        cmocka_unit_test(gates_over_the_whole_range),
        cmocka_unit_test(softcap_over_the_whole_range),
        cmocka_unit_test(softcap_planted),
        cmocka_unit_test(scale_of_any_dimensions),
        cmocka_unit_test(take_rows),
        cmocka_unit_test(a_row_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
