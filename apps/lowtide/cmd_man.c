/* cmd_man.c - manual pages in roff, from the option table; `make install` writes them. */
#include <string.h>

#include <lowtide/base.h>

#include "app.h"

static void text(const char *s)
{
    for (; *s; s++) {
        if (*s == '-' || *s == '\\')
            putchar('\\');
        putchar(*s);
    }
}

#define EXIT_STATUS \
    ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n2\nusage\n.TP\n3\nbad or missing input file\n.TP\n4\ndoes not fit the budget or the context\n" \
    ".TP\n5\ndevice or system failure, also output that cannot be written\n" \
    ".TP\n130\ninterrupted; what was done is accounted for\n"

static void page_all(void)
{
    printf(".TH LOWTIDE 1 \"\" \"lowtide %s\"\n.SH NAME\nlowtide \\- runs language models larger than memory, inside a budget\n"
           ".SH SYNOPSIS\n.B lowtide\n.I COMMAND\n[\\fIARGUMENT\\fR] [\\fIOPTION\\fR...]\n.SH DESCRIPTION\n"
           "Runs a model of a GGUF or safetensors file with no more memory than the budget allows: the plan says before\n"
           "anything is loaded what stays resident and what is streamed for every pass, and the accounting afterwards\n"
           "what was used. The answer does not depend on the budget.\n"
           "Text goes to standard output, everything else to standard error.\n.SH COMMANDS\n", lt_version());
    for (int c = 0; c < CMD_COUNT; c++) {
        printf(".TP\n.B %s\n", cmd_rows[c].name);
        text(cmd_rows[c].help);
        printf("; see\n.BR lowtide\\-%s (1)\n", cmd_rows[c].name);
    }
    printf(EXIT_STATUS ".SH ENVIRONMENT\n.TP\nHF_TOKEN\ntoken sent to the hub by\n.B lowtide pull\n"
           ".TP\nXDG_CACHE_HOME\nwhere the cache folder lies (~/.cache)\n"
           ".SH FILES\n.TP\n$XDG_CACHE_HOME/lowtide/profile\\-*.json\nrates of this machine, measured once\n"
           ".SH EXAMPLES\n.TP\nlowtide run model.gguf \\-p \\(dqWhy is the sky blue?\\(dq \\-\\-chat\none answer\n"
           ".TP\nlowtide run model.gguf\na chat in the terminal\n"
           ".TP\nlowtide plan model.gguf \\-\\-device sim:vram=8G \\-\\-vram 2G\nwhat a card with 2 GiB for it would do\n");
}

static void page_of(int c)
{
    const cmd_row *r = &cmd_rows[c];
    printf(".TH LOWTIDE\\-%s 1 \"\" \"lowtide %s\"\n.SH NAME\nlowtide\\-%s \\- ", r->name, lt_version(), r->name);
    text(r->help);
    printf("\n.SH SYNOPSIS\n.B lowtide %s\n.I ", r->name);
    if (r->args[0])
        text(r->args);
    else
        printf("\\&");
    printf("\n[\\fIOPTION\\fR...]\n");
    if (opts_note((cmd_id)c)) {
        printf(".SH DESCRIPTION\n");
        text(opts_note((cmd_id)c));
    }
    printf(".SH OPTIONS\n");
    for (int i = 0; i < OPT_COUNT; i++) {
        const opt_row *o = &opt_rows[i];
        if (!(o->cmds & 1u << c))
            continue;
        printf(".TP\n");
        if (o->brief)
            printf("\\fB\\-%c\\fR, ", o->brief);
        printf("\\fB\\-\\-");
        text(o->name);
        printf("\\fR");
        if (o->metavar)
            printf(" \\fI%s\\fR", o->metavar);
        printf("\n");
        text(o->help);
        printf("\n");
    }
    printf(EXIT_STATUS ".SH SEE ALSO\n.BR lowtide (1)\n");
}

int cmd_man(const opts *o)
{
    if (!o->arg) {
        page_all();
        return 0;
    }
    for (int c = 0; c < CMD_COUNT; c++)
        if (strcmp(cmd_rows[c].name, o->arg) == 0) {
            page_of(c);
            return 0;
        }
    fprintf(stderr, "lowtide: man %s: no such command\n", o->arg);
    return 2;
}
