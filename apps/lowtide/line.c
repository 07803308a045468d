/* line.c - see line.h. The editor draws on stderr: stdout carries answers only. */
#include "line.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include <histedit.h>

struct line_reader {
    const char *prompt;
    bool      (*stop)(void);
    bool      (*tick)(void *user);
    void       *user;
    EditLine   *el; /* NULL: no terminal */
    History    *past;
    char       *line;
    size_t      cap;
};

static line_reader *reader_of(EditLine *el)
{
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    return data;
}

static char *show_prompt(EditLine *el) { return (char *)(uintptr_t)reader_of(el)->prompt; }

/* libedit's own reader goes on after a signal. */
static int read_character(EditLine *el, wchar_t *out)
{
    mbstate_t state = {0};
    char byte;
    for (;;) {
        line_reader *r = reader_of(el);
        struct pollfd in = {.fd = 0, .events = POLLIN};
        int ready = r->tick ? poll(&in, 1, 250) : 1;
        if (ready == 0) {
            if (r->tick(r->user))
                el_set(el, EL_REFRESH);
            continue;
        }
        if (ready < 0 && r->stop())
            return -1;
        ssize_t n = ready < 0 ? -1 : read(0, &byte, 1);
        if (n < 0 && errno == EINTR && !reader_of(el)->stop()) {
            el_resize(el);
            continue;
        }
        if (n <= 0)
            return (int)n;
        size_t got = mbrtowc(out, &byte, 1, &state);
        if (got == (size_t)-1) { /* not UTF-8: as if it had not been typed */
            memset(&state, 0, sizeof state);
            continue;
        }
        if (got != (size_t)-2)
            return 1;
    }
}

/* Models speak UTF-8, so the editor must count its characters, in the C locale too. */
static void use_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

line_reader *line_open(const char *prompt, bool (*stop)(void))
{
    line_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->prompt = prompt;
    r->stop = stop;
    if (!isatty(0) || !isatty(2))
        return r;
    use_utf8();
    HistEvent e;
    r->el = el_init("lowtide", stdin, stderr, stderr);
    r->past = history_init();
    if (!r->el || !r->past) {
        line_close(r);
        return NULL;
    }
    history(r->past, &e, H_SETSIZE, 1000);
    history(r->past, &e, H_SETUNIQUE, 1);
    el_set(r->el, EL_CLIENTDATA, r);
    el_set(r->el, EL_PROMPT, show_prompt);
    el_set(r->el, EL_EDITOR, "emacs");
    el_set(r->el, EL_HIST, history, r->past);
    el_set(r->el, EL_SIGNAL, 0);
    el_set(r->el, EL_GETCFN, read_character);
    el_set(r->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return r;
}

const char *line_read(line_reader *r)
{
    errno = 0;
    if (!r->el) {
        ssize_t n = getline(&r->line, &r->cap, stdin);
        if (n <= 0)
            return NULL;
        if (r->line[n - 1] == '\n')
            r->line[n - 1] = 0;
        return r->line;
    }
    int n;
    const char *got = el_gets(r->el, &n);
    if (!got || n <= 0)
        return NULL;
    char *copy = strdup(got);
    if (!copy)
        return NULL;
    free(r->line);
    r->line = copy;
    r->line[strcspn(r->line, "\n")] = 0;
    HistEvent e;
    if (*r->line)
        history(r->past, &e, H_ENTER, r->line);
    return r->line;
}

void line_meanwhile(line_reader *r, bool (*tick)(void *user), void *user)
{
    r->tick = tick;
    r->user = user;
}

void line_close(line_reader *r)
{
    if (!r)
        return;
    if (r->el)
        el_end(r->el);
    if (r->past)
        history_end(r->past);
    free(r->line);
    free(r);
}
