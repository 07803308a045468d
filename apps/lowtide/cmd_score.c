/* cmd_score.c - perplexity of a text, and its logits as an array. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

#define WINDOW 2048

typedef struct score {
    app       a;
    lt_tokens t;
    app_file  npy;       /* --logits */
    uint32_t  vocab, window;
    double    nll;       /* natural log, summed over tokens 1 .. n-1 of each window */
    uint64_t  counted;
    size_t    base;      /* first token of the window under way */
} score;

static lt_status write_error(score *sc)
{
    snprintf(sc->a.err.text, sizeof sc->a.err.text, "--logits %s: write failed: %s", sc->a.o->v[OPT_logits].s, strerror(errno));
    return sc->a.err.status = LT_E_IO;
}

/* NumPy's format 1.0: magic, header length, a Python dict padded so that data starts at 128 bytes. */
static lt_status open_npy(score *sc)
{
    if (!sc->a.o->v[OPT_logits].set)
        return LT_OK;
    lt_status s = app_file_open(&sc->a, OPT_logits, &sc->npy);
    if (s != LT_OK)
        return s;
    char dict[118];
    int n = snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %u), }", sc->t.n, sc->vocab);
    memset(dict + n, ' ', sizeof dict - (size_t)n);
    dict[sizeof dict - 1] = '\n';
    static const unsigned char head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, sizeof dict, 0};
    FILE *f = sc->npy.f;
    return fwrite(head, 1, sizeof head, f) == sizeof head && fwrite(dict, 1, sizeof dict, f) == sizeof dict ? LT_OK : write_error(sc);
}

static lt_status take_row(void *user, size_t index, const float *logits, lt_err *err)
{
    score *sc = user;
    (void)err;
    if (sc->npy.f && fwrite(logits, sizeof *logits, sc->vocab, sc->npy.f) != sc->vocab) {
        lt_status s = write_error(sc);
        *err = sc->a.err;
        return s;
    }
    size_t next = sc->base + index + 1;
    if (next >= sc->t.n)
        return LT_OK;
    double top = logits[0], sum = 0;
    for (uint32_t i = 1; i < sc->vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    for (uint32_t i = 0; i < sc->vocab; i++)
        sum += exp((double)logits[i] - top);
    sc->nll -= (double)logits[sc->t.v[next]] - top - log(sum);
    sc->counted++;
    return LT_OK;
}

/* Windows of the plan's context, each from an empty cache; the last token of a window predicts the
 * first of the next without having seen what the next one sees. */
static lt_status score_windows(score *sc)
{
    uint32_t ctx = lt_plan_get_info(sc->a.plan)->ctx;
    for (sc->base = 0; sc->base < sc->t.n; sc->base += ctx) {
        size_t n = sc->t.n - sc->base < ctx ? sc->t.n - sc->base : ctx;
        lt_status s = lt_session_truncate(sc->a.session, 0, &sc->a.err);
        if (s == LT_OK)
            s = lt_session_score(sc->a.session, sc->t.v + sc->base, n, take_row, sc, &sc->a.err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

static bool print_result(score *sc, const char *ended)
{
    const opts *o = sc->a.o;
    double ppl = sc->counted ? exp(sc->nll / (double)sc->counted) : NAN;
    if (!o->v[OPT_quiet].set)
        app_print_accounting(&sc->a, stderr);
    json_t *j = app_report_json(&sc->a);
    json_object_set_new(j, "ended", json_string(ended));
    json_object_set_new(j, "tokens", json_integer((json_int_t)sc->t.n));
    json_object_set_new(j, "scored", json_integer((json_int_t)sc->counted));
    json_object_set_new(j, "nll", json_real(sc->nll));
    json_object_set_new(j, "perplexity", isfinite(ppl) ? json_real(ppl) : json_null());
    if (o->v[OPT_json].set)
        app_print_json(json_incref(j));
    else if (sc->counted)
        printf("perplexity %.6f over %lu of %zu tokens\n", ppl, sc->counted, sc->t.n);
    return app_write_report(&sc->a, j);
}

static lt_status prepare(score *sc)
{
    app *a = &sc->a;
    char *text;
    size_t bytes;
    lt_status s;
    if ((s = app_open_device(a)) != LT_OK || (s = app_open_model(a)) != LT_OK || (s = app_open_tokenizer(a)) != LT_OK ||
        (s = app_text(a, &text, &bytes)) != LT_OK)
        return s;
    s = lt_tokenizer_encode(a->tok, text, bytes, LT_ENCODE_BOS | LT_ENCODE_SPECIAL, &sc->t, &a->err);
    free(text);
    if (s == LT_OK && sc->t.n < 2) {
        snprintf(a->err.text, sizeof a->err.text, "the text has %zu tokens: at least 2 are needed", sc->t.n);
        s = a->err.status = LT_E_INVALID;
    }
    /* A window that followed the budget would make the perplexity follow it too. */
    uint32_t context = lt_model_get_info(a->model)->context;
    uint64_t most = a->o->v[OPT_ctx].set ? a->o->v[OPT_ctx].u : WINDOW;
    if (s == LT_OK) {
        sc->window = sc->t.n < most ? (uint32_t)sc->t.n : (uint32_t)most;
        sc->window = sc->window < context ? sc->window : context;
    }
    if (s == LT_OK)
        s = app_make_plan(a, 16, sc->window, 0);
    return s == LT_OK ? app_start(a) : s;
}

int cmd_score(const opts *o)
{
    score sc = {0};
    int code = 0;
    lt_status s = app_open(&sc.a, o);
    if (s == LT_OK) {
        app_catch_interrupt(&sc.a);
        s = prepare(&sc);
    }
    if (s == LT_OK) {
        sc.vocab = lt_model_get_info(sc.a.model)->vocab;
        app_catch_interrupt(&sc.a);
        s = open_npy(&sc);
        if (s == LT_OK)
            s = score_windows(&sc);
        app_progress_end();
        lt_err first = sc.a.err;
        lt_status closed = app_file_close(&sc.a, &sc.npy, s == LT_OK);
        if (s != LT_OK)
            sc.a.err = first;
        s = s == LT_OK ? closed : s;
        if (s != LT_OK)
            code = app_fail(&sc.a);
        if (!print_result(&sc, s == LT_OK ? "done" : s == LT_E_CANCELED ? "interrupted" : "failure") && code == 0)
            code = 5;
    } else {
        code = app_fail(&sc.a);
    }
    lt_tokens_clear(&sc.t);
    if (app_close(&sc.a) != LT_OK && code == 0)
        code = app_fail(&sc.a);
    return code;
}
