/* cmd_top.c - every Lowtide process of this user, live in a terminal, or once. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef LT_NCURSES
#  define NCURSES_NOMACROS
#  include <curses.h>
#endif

#include <lowtide/watch.h>

#include "app.h"

#define MOST 64
#define IDLE_NS 1500000000u /* no pass for that long: it waits for somebody */

typedef struct view { lt_watch now, before; bool had; } view; /* before: at the look before this one */
typedef struct views { view v[MOST]; size_t n; } views;

static void look(views *s)
{
    static lt_watch w[MOST];
    static views old;
    old = *s;
    s->n = lt_watch_list(w, MOST);
    for (size_t i = 0; i < s->n; i++) {
        s->v[i] = (view){.now = w[i]};
        for (size_t k = 0; k < old.n; k++)
            if (old.v[k].now.pid == w[i].pid && old.v[k].now.started_ns == w[i].started_ns) {
                /* A page that was not written since then keeps the rates it had, until it is idle. */
                bool same = old.v[k].now.now_ns == w[i].now_ns;
                s->v[i].before = same ? old.v[k].before : old.v[k].now;
                s->v[i].had = same ? old.v[k].had : true;
            }
    }
}

static bool idle(const view *v) { return v->now.age_ns > IDLE_NS && strcmp(v->now.phase, "loading") != 0; }
static const char *phase(const view *v) { return idle(v) ? "idle" : v->now.phase; }

static double rate(const view *v, uint64_t now, uint64_t before)
{
    double seconds = (double)(v->now.now_ns - v->before.now_ns) * 1e-9;
    return v->had && !idle(v) && seconds > 0 && now >= before ? (double)(now - before) / seconds : 0;
}

static double tokens_a_second(const view *v)
{
    const lt_watch *n = &v->now, *b = &v->before;
    uint64_t tokens = n->prompt_tokens + n->decode_tokens - b->prompt_tokens - b->decode_tokens;
    uint64_t ns = n->prompt_ns + n->decode_ns - b->prompt_ns - b->decode_ns;
    return v->had && !idle(v) && ns ? (double)tokens / ((double)ns * 1e-9) : 0;
}

static double share(uint64_t part, uint64_t all) /* at most 1, whatever a page says */
{
    double s = all ? (double)part / (double)all : 0;
    return s < 1 ? s : 1;
}

static uint64_t whole(double x) { return x < 1e18 ? (uint64_t)x : UINT64_C(1000000000000000000); }

/* --- as JSON ---------------------------------------------------------------------------- */

static json_t *watch_json(const view *v)
{
    const lt_watch *w = &v->now;
    json_t *use = json_object(), *map = json_array(), *j;
    for (int u = 0; u < LT_USE_COUNT; u++)
        json_object_set_new(use, lt_use_name((lt_use)u), json_integer((json_int_t)w->live_by_use[u]));
    for (int i = 0; i < LT_WATCH_MAP; i++)
        json_array_append_new(map, json_integer(w->map[i]));
    j = json_pack("{s:I, s:o, s:o, s:s, s:s}", "pid", (json_int_t)w->pid, "model", app_string(w->model), "device", app_string(w->device),
                  "device_id", w->id, "phase", phase(v));
#define N(name) json_object_set_new(j, #name, json_integer((json_int_t)w->name));
    N(budget_bytes) N(fixed_bytes) N(card_bytes) N(card_free_bytes) N(reserve_bytes) N(reserve_missed_bytes) N(committed_bytes)
    N(peak_bytes) N(weight_bytes) N(resident_bytes) N(streamed_bytes) N(h2d_bytes) N(d2h_bytes) N(disk_bytes) N(leases) N(hits)
    N(prompt_tokens) N(decode_tokens) N(length) N(ctx) N(budget_changes)
#undef N
    json_object_set_new(j, "age_seconds", json_real((double)w->age_ns * 1e-9));
    json_object_set_new(j, "stall_seconds", json_real((double)w->stall_ns * 1e-9));
    json_object_set_new(j, "tokens_per_second", json_real(tokens_a_second(v)));
    json_object_set_new(j, "h2d_per_second", json_real(rate(v, w->h2d_bytes, v->before.h2d_bytes)));
    json_object_set_new(j, "d2h_per_second", json_real(rate(v, w->d2h_bytes, v->before.d2h_bytes)));
    json_object_set_new(j, "disk_per_second", json_real(rate(v, w->disk_bytes, v->before.disk_bytes)));
    json_object_set_new(j, "stalled", json_real(rate(v, w->stall_ns, v->before.stall_ns) * 1e-9));
    json_object_set_new(j, "live_by_use", use);
    json_object_set_new(j, "resident_map", map);
    return j;
}

static void print_json(const views *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(list, watch_json(&s->v[i]));
    app_print_json(json_pack("{s:o}", "processes", list));
}

/* --- as lines --------------------------------------------------------------------------- */

typedef void line_fn(void *user, const char *text, bool bold);

/* One letter a use; what the arena holds free is '.', what the card has beside the budget is blank. */
static void draw_bar(const lt_watch *w, char *bar, int width)
{
    static const char letter[LT_USE_COUNT] = "wkarsox"; /* weight kv activation ring staging optimizer other */
    uint64_t all = w->card_bytes ? w->card_bytes : 1, at = w->fixed_bytes;
    memset(bar, ' ', (size_t)width);
    bar[width] = 0;
    int budget = (int)(share(w->budget_bytes, all) * width);
    for (int i = 0; i < budget && i < width; i++)
        bar[i] = '.';
    for (int i = 0; i < (int)(share(w->fixed_bytes, all) * width) && i < width; i++)
        bar[i] = '#';
    for (int u = 0; u < LT_USE_COUNT; u++) {
        uint64_t end = at + w->live_by_use[u];
        for (int i = (int)(share(at, all) * width); i < (int)(share(end, all) * width + 0.5) && i < width; i++)
            bar[i] = letter[u];
        at = end;
    }
    int taken = width - (int)((share(w->card_free_bytes, all) + share(w->committed_bytes, all)) * width); /* by others, from the right */
    for (int i = 0; i < taken && i < width; i++)
        bar[width - 1 - i] = '/';
}

static void draw_map(const lt_watch *w, char *map, int width)
{
    static const char step[] = ".:-=+*%#";
    for (int i = 0; i < width; i++)
        map[i] = step[w->map[i * LT_WATCH_MAP / width] * 7 / 255];
    map[width] = 0;
}

static void draw_process(const view *v, int columns, line_fn *out, void *user)
{
    const lt_watch *w = &v->now;
    char text[512], bar[LT_WATCH_MAP + 400], b[8][24];
    int width = columns - 10 < 20 ? 20 : columns - 10 > 400 ? 400 : columns - 10;
    snprintf(text, sizeof text, "%-7u %-8s %8.1f tok/s  %u of %u positions  %s", w->pid, phase(v), tokens_a_second(v), w->length, w->ctx, w->model);
    out(user, text, true);
    snprintf(text, sizeof text, "  device  %s", w->device);
    out(user, text, false);
    snprintf(text, sizeof text, "  memory  %s of %s budget, peak %s; card %s, %s free%s%s", app_bytes(w->committed_bytes, b[0]),
             app_bytes(w->budget_bytes, b[1]), app_bytes(w->peak_bytes, b[2]), app_bytes(w->card_bytes, b[3]),
             app_bytes(w->card_free_bytes, b[4]), w->reserve_bytes ? ", reserve " : "", w->reserve_bytes ? app_bytes(w->reserve_bytes, b[5]) : "");
    out(user, text, w->reserve_missed_bytes > 0);
    draw_bar(w, bar, width);
    snprintf(text, sizeof text, "         [%.400s]", bar);
    out(user, text, false);
    snprintf(text, sizeof text, "  weights %s resident, %s streamed a pass; %s kv, %s ring, %s activations; %u change%s of budget",
             app_bytes(w->resident_bytes, b[0]), app_bytes(w->streamed_bytes, b[1]), app_bytes(w->live_by_use[LT_USE_KV], b[2]),
             app_bytes(w->live_by_use[LT_USE_RING], b[3]), app_bytes(w->live_by_use[LT_USE_ACTIVATION], b[4]), w->budget_changes,
             w->budget_changes == 1 ? "" : "s");
    out(user, text, false);
    draw_map(w, bar, width < LT_WATCH_MAP ? width : LT_WATCH_MAP);
    snprintf(text, sizeof text, "  map    [%.400s]", bar);
    out(user, text, false);
    snprintf(text, sizeof text, "  moving  %s/s in, %s/s out, %s/s from disk; stalled %.0f%%; %.1f%% of leases hit",
             app_bytes(whole(rate(v, w->h2d_bytes, v->before.h2d_bytes)), b[0]), app_bytes(whole(rate(v, w->d2h_bytes, v->before.d2h_bytes)), b[1]),
             app_bytes(whole(rate(v, w->disk_bytes, v->before.disk_bytes)), b[2]), rate(v, w->stall_ns, v->before.stall_ns) * 1e-7,
             100 * share(w->hits, w->leases));
    out(user, text, false);
    out(user, "", false);
}

static void draw(const views *s, int columns, line_fn *out, void *user)
{
    char text[128];
    snprintf(text, sizeof text, "%zu Lowtide process%s", s->n, s->n == 1 ? "" : "es");
    out(user, text, true);
    out(user, "# fixed  w weights  k KV  a activations  r ring  s staging  . free in the budget  / of others   map: # resident . streamed", false);
    out(user, "", false);
    for (size_t i = 0; i < s->n; i++)
        draw_process(&s->v[i], columns, out, user);
}

static void print_line(void *user, const char *text, bool bold)
{
    (void)bold;
    size_t n = strlen(text);
    while (n && text[n - 1] == ' ')
        n--;
    fprintf(user, "%.*s\n", (int)n, text);
}

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
}

#ifdef LT_NCURSES
typedef struct screen { int row, rows, columns; } screen;

static void screen_line(void *user, const char *text, bool bold)
{
    screen *s = user;
    if (s->row >= s->rows)
        return;
    if (bold)
        attron(A_BOLD);
    mvaddnstr(s->row++, 0, text, s->columns);
    if (bold)
        attroff(A_BOLD);
}

static int live(double interval)
{
    static views s;
    setlocale(LC_ALL, "");
    if (!newterm(NULL, stdout, stdin)) {
        fprintf(stderr, "lowtide: top: the terminal '%s' is not known; --once prints without one\n", getenv("TERM") ? getenv("TERM") : "");
        return 5;
    }
    cbreak();
    noecho();
    curs_set(0);
    timeout((int)(interval * 1000));
    for (int key = 0; key != 'q' && key != 'Q' && key != 27 && !app_interrupted(); key = getch()) {
        screen at = {0};
        look(&s);
        getmaxyx(stdscr, at.rows, at.columns);
        erase();
        at.rows--;
        draw(&s, at.columns, screen_line, &at);
        mvaddnstr(at.rows, 0, "q ends", at.columns);
        refresh();
    }
    endwin();
    return 0;
}
#endif

int cmd_top(const opts *o)
{
    static views s;
    double interval = o->v[OPT_interval].set ? o->v[OPT_interval].f : 0.5;
    if (!o->v[OPT_once].set && !o->v[OPT_json].set) {
#ifdef LT_NCURSES
        app a = {.o = o};
        app_catch_interrupt(&a);
        app_wait_interrupt();
        if (isatty(0) && isatty(1))
            return live(interval);
        fprintf(stderr, "lowtide: top: no terminal; --once or --json prints into a pipe\n");
#else
        fprintf(stderr, "lowtide: top: this build is without ncurses (Debian: libncurses-dev); --once or --json prints what is now\n");
#endif
        return 2;
    }
    look(&s);
    if (s.n) { /* rates need two looks */
        pause_for(interval);
        look(&s);
    }
    if (o->v[OPT_json].set)
        print_json(&s);
    else
        draw(&s, 100, print_line, stdout);
    return ferror(stdout) || fflush(stdout) != 0 ? 5 : 0;
}
