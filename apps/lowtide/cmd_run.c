/* cmd_run.c - one prompt, a file, or a chat in the terminal. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "app.h"
#include "line.h"

#define DEFAULT_TOKENS 256

typedef struct run {
    app              a;
    lt_chat_template template;
    lt_chat_reader   reader;  /* of the answer that is coming */
    bool             chat;    /* the prompt was rendered by template */
    uint64_t         hidden;  /* tokens of the answer that are not for the user */
    lt_sampler      *sampler;
    lt_detok        *detok;
    uint64_t         seed;
    lt_tokens        prompt;  /* of the coming turn */
    int32_t         *held; size_t n_held, cap_held; /* tokens the session has evaluated */
    json_t          *ids;     /* generated, of all turns */
    char            *text; size_t text_len, text_cap; /* generated */
    bool             stream;  /* text goes to stdout as it comes */
    const char      *ended;   /* "end of text", "length", "context", "interrupted" */
} run;

static lt_status fail(run *r, lt_status s, const char *text)
{
    snprintf(r->a.err.text, sizeof r->a.err.text, "%s", text);
    return r->a.err.status = s;
}

static lt_status make_sampler(run *r)
{
    const opt_value *v = r->a.o->v;
    lt_sampler_desc d = lt_sampler_desc_default();
    if (v[OPT_temp].set)
        d.temperature = (float)v[OPT_temp].f;
    if (v[OPT_top_k].set)
        d.top_k = (uint32_t)v[OPT_top_k].u;
    if (v[OPT_top_p].set)
        d.top_p = (float)v[OPT_top_p].f;
    if (v[OPT_min_p].set)
        d.min_p = (float)v[OPT_min_p].f;
    if (v[OPT_penalty].set)
        d.repeat_penalty = (float)v[OPT_penalty].f;
    if (v[OPT_penalty_last].set)
        d.repeat_last = (uint32_t)v[OPT_penalty_last].u;
    if (v[OPT_seed].set)
        r->seed = v[OPT_seed].u;
    else if (getrandom(&r->seed, sizeof r->seed, 0) == sizeof r->seed)
        r->seed >>= 32; /* short enough to type again */
    d.seed = r->seed;
    return lt_sampler_create(r->a.ctx, &d, lt_model_get_info(r->a.model)->vocab, &r->sampler, &r->a.err);
}

static lt_status add_text(run *r, const char *s, size_t n)
{
    if (r->text_len + n + 1 > r->text_cap) {
        size_t cap = (r->text_len + n + 1) * 2;
        char *p = realloc(r->text, cap);
        if (!p)
            return fail(r, LT_E_HOST_OOM, "no memory for the answer");
        r->text = p;
        r->text_cap = cap;
    }
    memcpy(r->text + r->text_len, s, n);
    r->text_len += n;
    r->text[r->text_len] = 0;
    if (r->stream && (fwrite(s, 1, n, stdout) != n || fflush(stdout) != 0))
        return fail(r, LT_E_IO, "writing to standard output failed");
    return LT_OK;
}

static lt_status feed(run *r, const int32_t *ids, size_t n, const float **logits)
{
    if (r->n_held + n > r->cap_held) {
        size_t cap = 2 * (r->n_held + n);
        int32_t *p = realloc(r->held, cap * sizeof *p);
        if (!p)
            return fail(r, LT_E_HOST_OOM, "no memory for the conversation's tokens");
        r->held = p;
        r->cap_held = cap;
    }
    lt_status s = lt_session_eval(r->a.session, ids, n, logits, &r->a.err);
    uint32_t length = lt_session_length(r->a.session); /* a stopped prompt was read in part */
    memcpy(r->held + r->n_held, ids, (length - r->n_held) * sizeof *ids);
    r->n_held = length;
    return s;
}

static lt_status add_token(run *r, int32_t id)
{
    size_t bytes;
    const char *piece = lt_detok_push(r->detok, id, &bytes);
    return add_text(r, piece, bytes);
}

/* Reads the prompt's tokens, then picks and feeds back until something ends it. */
static lt_status generate(run *r)
{
    app *a = &r->a;
    const opt_value *v = a->o->v;
    uint64_t most = v[OPT_tokens].set ? v[OPT_tokens].u : DEFAULT_TOKENS;
    uint32_t ctx = lt_plan_get_info(a->plan)->ctx;
    size_t text0 = r->text_len;
    const float *logits;
    lt_status s = feed(r, r->prompt.v, r->prompt.n, &logits);
    app_progress_end();
    for (size_t i = 0; i < r->prompt.n; i++)
        lt_sampler_accept(r->sampler, r->prompt.v[i]);
    r->ended = "length";
    r->reader = (lt_chat_reader){0};
    r->hidden = 0;
    for (uint64_t n = 0; s == LT_OK && n < most; n++) {
        int32_t id = lt_sampler_pick(r->sampler, logits);
        lt_chat_part part = r->chat ? lt_chat_read(&r->reader, r->template, a->tok, id) : LT_CHAT_SHOWN;
        if (part == LT_CHAT_OVER || lt_tokenizer_ends(a->tok, id)) {
            r->ended = "end of text";
            break;
        }
        lt_sampler_accept(r->sampler, id);
        json_array_append_new(r->ids, json_integer(id));
        if (part == LT_CHAT_HIDDEN)
            r->hidden++;
        else if ((s = add_token(r, id)) != LT_OK)
            break;
        if (lt_session_length(a->session) == ctx) {
            r->ended = "context";
            break;
        }
        if (app_interrupted())
            s = LT_E_CANCELED;
        else if (n + 1 < most)
            s = feed(r, &id, 1, &logits);
    }
    if (s == LT_E_CANCELED) {
        r->ended = "interrupted";
        s = LT_OK;
    } else if (s != LT_OK) {
        r->ended = "failure";
    }
    size_t bytes;
    const char *rest = lt_detok_flush(r->detok, &bytes);
    lt_status t = add_text(r, rest, bytes);
    if (r->hidden && r->text_len == text0 && s == LT_OK && !v[OPT_quiet].set)
        fprintf(stderr, "(no answer, only %" PRIu64 " tokens of thoughts%s)\n", r->hidden,
                strcmp(r->ended, "length") == 0 ? "; --tokens gives it more" : "");
    return s == LT_OK ? t : s;
}

static lt_status encode(run *r, const char *text, size_t bytes, unsigned flags)
{
    lt_tokens_clear(&r->prompt);
    lt_status s = lt_tokenizer_encode(r->a.tok, text, bytes, flags, &r->prompt, &r->a.err);
    if (s == LT_OK && !r->prompt.n)
        return fail(r, LT_E_INVALID, "the prompt is empty");
    return s;
}

static lt_status find_template(run *r)
{
    const char *name = r->a.o->v[OPT_template].s;
    if (!name)
        return lt_chat_detect(lt_model_get_file(r->a.model), &r->template, &r->a.err);
    if (lt_chat_by_name(name, &r->template))
        return LT_OK;
    snprintf(r->a.err.text, sizeof r->a.err.text, "--chat-template %s: no such template; lowtide help run lists them", name);
    return r->a.err.status = LT_E_INVALID;
}

/* The whole conversation rendered anew each turn: what was sent before is a prefix of it, so only what
 * lies beyond the common tokens is read. */
static lt_status turn_tokens(run *r, const lt_chat_message *m, size_t n)
{
    char *text;
    size_t bytes;
    r->chat = true;
    lt_status s = lt_chat_render(r->a.ctx, r->template, m, n, true, &text, &bytes, &r->a.err);
    if (s != LT_OK)
        return s;
    s = encode(r, text, bytes, LT_ENCODE_BOS | LT_ENCODE_SPECIAL);
    lt_chat_free(r->a.ctx, text, bytes);
    if (s != LT_OK || !r->a.session)
        return s;
    size_t same = 0;
    while (same < r->n_held && same + 1 < r->prompt.n && r->held[same] == r->prompt.v[same])
        same++;
    if (lt_session_truncate(r->a.session, (uint32_t)same, &r->a.err) != LT_OK) {
        same = 0; /* a windowed model forgot what lies there: read all again */
        if ((s = lt_session_truncate(r->a.session, 0, &r->a.err)) != LT_OK)
            return s;
    }
    r->n_held = same;
    memmove(r->prompt.v, r->prompt.v + same, (r->prompt.n - same) * sizeof *r->prompt.v);
    r->prompt.n -= same;
    return LT_OK;
}

static lt_status prompt_once(run *r)
{
    char *text = NULL;
    size_t bytes = 0;
    const opt_value *v = r->a.o->v;
    lt_status s = app_text(&r->a, &text, &bytes);
    if (s == LT_OK && v[OPT_chat].set) {
        char *z = strndup(text, bytes);
        lt_chat_message m[2] = {{"system", v[OPT_system].s}, {"user", z}};
        s = !z                      ? fail(r, LT_E_HOST_OOM, "no memory for the prompt")
            : memchr(text, 0, bytes) ? fail(r, LT_E_INVALID, "a chat message cannot hold a zero byte; without --chat it can")
                                    : find_template(r);
        if (s == LT_OK)
            s = turn_tokens(r, m + !v[OPT_system].set, 1 + v[OPT_system].set);
        free(z);
    } else if (s == LT_OK) {
        s = encode(r, text, bytes, LT_ENCODE_BOS | LT_ENCODE_SPECIAL);
    }
    free(text);
    return s;
}

typedef struct history { lt_chat_message *m; size_t n, cap; } history;

static bool push_message(history *h, const char *role, const char *content)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 8;
        lt_chat_message *m = realloc(h->m, cap * sizeof *m);
        if (!m)
            return false;
        h->m = m;
        h->cap = cap;
    }
    char *copy = strdup(content);
    if (!copy)
        return false;
    h->m[h->n++] = (lt_chat_message){role, copy};
    return true;
}

static void free_history(history *h)
{
    for (size_t i = 0; i < h->n; i++)
        free((char *)(uintptr_t)h->m[i].content);
    free(h->m);
}

/* Renders the conversation, without its oldest turns where the context cannot hold them and an answer. */
static lt_status turn(run *r, history *h)
{
    uint32_t ctx = lt_plan_get_info(r->a.plan)->ctx;
    size_t first = h->n && strcmp(h->m[0].role, "system") == 0, forgotten = 0;
    lt_status s;
    while ((s = turn_tokens(r, h->m, h->n)) == LT_OK && r->n_held + r->prompt.n + ctx / 8 > ctx && h->n > first + 2) {
        for (int k = 0; k < 2; k++) {
            free((char *)(uintptr_t)h->m[first].content);
            memmove(h->m + first, h->m + first + 1, (h->n - first - 1) * sizeof *h->m);
            h->n--;
        }
        forgotten++;
    }
    if (forgotten)
        fprintf(stderr, "(the context of %u positions is full: the oldest %zu turn%s forgotten)\n", ctx, forgotten,
                forgotten == 1 ? " is" : "s are");
    return s;
}

/* Ctrl-C ends an answer in a terminal, and the chat at its prompt; elsewhere it ends the chat. */
static lt_status chat_turns(run *r, history *h, line_reader *in, bool tty)
{
    lt_status s = LT_OK;
    while (s == LT_OK && !app_interrupted()) {
        const char *line = line_read(in);
        if (!line || !*line)
            break;
        size_t text0 = r->text_len;
        if (!push_message(h, "user", line))
            return fail(r, LT_E_HOST_OOM, "no memory for the conversation");
        if ((s = turn(r, h)) == LT_OK)
            s = generate(r);
        if (s == LT_OK && r->stream)
            s = fputc('\n', stdout) == EOF || fflush(stdout) != 0 ? fail(r, LT_E_IO, "writing to standard output failed") : LT_OK;
        if (s == LT_OK && !push_message(h, "assistant", r->text ? r->text + text0 : ""))
            return fail(r, LT_E_HOST_OOM, "no memory for the conversation");
        if (s == LT_OK && strcmp(r->ended, "context") == 0)
            fprintf(stderr, "(the answer ends here: the context of %u positions is full)\n", lt_plan_get_info(r->a.plan)->ctx);
        if (tty && app_interrupted() && !app_terminated())
            app_forget_interrupt();
    }
    return s;
}

/* A chat that waits for its user still gives way to others on the card. A failure shows at the next turn. */
static bool look_around(void *user)
{
    run *r = user;
    size_t before = lt_session_budget_change_count(r->a.session);
    lt_err ignored;
    return lt_session_look(r->a.session, &ignored) != LT_OK || lt_session_budget_change_count(r->a.session) != before;
}

static lt_status chat(run *r)
{
    history h = {0};
    const opt_value *v = r->a.o->v;
    bool tty = isatty(0) && isatty(2);
    lt_status s = LT_OK;
    if (v[OPT_system].set && !push_message(&h, "system", v[OPT_system].s))
        s = fail(r, LT_E_HOST_OOM, "no memory for the conversation");
    line_reader *in = s == LT_OK ? line_open("> ", app_interrupted) : NULL;
    if (s == LT_OK && !in)
        s = fail(r, LT_E_HOST_OOM, "no memory for the line editor");
    if (s == LT_OK)
        line_meanwhile(in, look_around, r);
    if (tty && s == LT_OK)
        fprintf(stderr, "chat with %s; an empty line or Ctrl-D ends it, Ctrl-C ends an answer\n", lt_model_get_info(r->a.model)->name);
    if (s == LT_OK)
        s = chat_turns(r, &h, in, tty);
    line_close(in);
    free_history(&h);
    return s;
}

static lt_status start(run *r, bool talk)
{
    const opt_value *v = r->a.o->v;
    lt_status s = app_open_device(&r->a);
    if (s == LT_OK)
        s = app_open_model(&r->a);
    if (s == LT_OK)
        s = app_open_tokenizer(&r->a);
    if (s == LT_OK)
        s = talk ? find_template(r) : prompt_once(r);
    if (s == LT_OK)
        s = app_make_plan(&r->a, 1, r->prompt.n, v[OPT_tokens].set ? v[OPT_tokens].u : DEFAULT_TOKENS);
    if (s == LT_OK && !v[OPT_quiet].set && !talk)
        app_print_plan(&r->a, stderr);
    if (s == LT_OK && r->prompt.n > lt_plan_get_info(r->a.plan)->ctx) {
        snprintf(r->a.err.text, sizeof r->a.err.text, "the prompt has %zu tokens, the context of this plan %u positions; --ctx or the budget must grow",
                 r->prompt.n, lt_plan_get_info(r->a.plan)->ctx);
        s = r->a.err.status = LT_E_NO_FIT;
    }
    if (s == LT_OK)
        s = make_sampler(r);
    if (s == LT_OK)
        s = lt_detok_create(r->a.tok, &r->detok, &r->a.err);
    return s == LT_OK ? app_start(&r->a) : s;
}

static bool finish(run *r)
{
    const opts *o = r->a.o;
    if (!o->v[OPT_quiet].set) {
        if (o->v[OPT_temp].set ? o->v[OPT_temp].f > 0 : true)
            fprintf(stderr, "seed    %lu\n", r->seed);
        app_print_accounting(&r->a, stderr);
    }
    if (!o->v[OPT_json].set && !o->v[OPT_report].set)
        return true;
    json_t *j = app_report_json(&r->a);
    json_object_set_new(j, "seed", json_integer((json_int_t)r->seed));
    json_object_set_new(j, "ended", json_string(r->ended ? r->ended : "no turn"));
    json_object_set(j, "tokens", r->ids);
    json_t *text = json_stringn(r->text ? r->text : "", r->text_len);
    json_object_set_new(j, "text", text ? text : json_string("(not UTF-8)"));
    bool ok = true;
    if (o->v[OPT_report].set)
        ok = app_write_report(&r->a, json_incref(j));
    if (o->v[OPT_json].set)
        app_print_json(json_incref(j));
    json_decref(j);
    return ok;
}

int cmd_run(const opts *o)
{
    run r = {0};
    int code = 0;
    if (app_open(&r.a, o) != LT_OK)
        return app_fail(&r.a);
    bool talk = !o->v[OPT_prompt].set && !o->v[OPT_file].set;
    r.stream = !o->v[OPT_json].set;
    r.ids = json_array();
    app_catch_interrupt(&r.a);
    lt_status s = start(&r, talk);
    if (s == LT_OK) {
        app_catch_interrupt(&r.a);
        s = talk ? chat(&r) : generate(&r);
        if (r.stream && !talk && s != LT_E_IO && (putchar('\n') == EOF || fflush(stdout) != 0) && s == LT_OK)
            s = fail(&r, LT_E_IO, "writing to standard output failed");
        if (s != LT_OK)
            code = app_fail(&r.a);
        if (!finish(&r) && code == 0)
            code = 5;
        if (code == 0 && app_interrupted())
            code = 130;
    } else {
        code = app_fail(&r.a);
    }
    lt_tokens_clear(&r.prompt);
    json_decref(r.ids);
    free(r.text);
    free(r.held);
    lt_sampler_destroy(r.sampler);
    lt_detok_destroy(r.detok);
    if (app_close(&r.a) != LT_OK && code == 0)
        code = app_fail(&r.a);
    return code;
}
