/* cmd_completion.c - completion scripts for shells, from the option table. */
#include <string.h>

#include "app.h"

static void print_words(int cmd)
{
    for (int i = 0; i < OPT_COUNT; i++)
        if (opt_rows[i].cmds & 1u << cmd)
            printf(" --%s", opt_rows[i].name);
}

static void bash(void)
{
    printf("_lowtide() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words=\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"help");
    for (int c = 0; c < CMD_COUNT; c++)
        printf(" %s", cmd_rows[c].name);
    printf("\"\n    else\n        case ${COMP_WORDS[1]} in\n");
    for (int c = 0; c < CMD_COUNT; c++) {
        printf("        %s) words=\"", cmd_rows[c].name);
        print_words(c);
        printf("\";;\n");
    }
    printf("        esac\n    fi\n    case $cur in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"));;\n"
           "    *) [ \"$COMP_CWORD\" -eq 1 ] && COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) || COMPREPLY=($(compgen -f -- \"$cur\"));;\n"
           "    esac\n}\ncomplete -o filenames -F _lowtide lowtide\n");
}

static void print_quoted(const char *s)
{
    putchar('\'');
    for (; *s; s++)
        printf(*s == '\'' ? "'\\''" : *s == '[' || *s == ']' || *s == ':' ? "\\%c" : "%c", *s);
    putchar('\'');
}

static void zsh(void)
{
    printf("#compdef lowtide\n_lowtide() {\n    local -a cmds\n    cmds=(\n");
    for (int c = 0; c < CMD_COUNT; c++) {
        printf("        %s:", cmd_rows[c].name);
        print_quoted(cmd_rows[c].help);
        printf("\n");
    }
    printf("    )\n    if (( CURRENT == 2 )); then _describe command cmds; return; fi\n    case ${words[2]} in\n");
    for (int c = 0; c < CMD_COUNT; c++) {
        printf("    %s) _arguments", cmd_rows[c].name);
        for (int i = 0; i < OPT_COUNT; i++)
            if (opt_rows[i].cmds & 1u << c) {
                printf(" \\\n        --%s%s'[", opt_rows[i].name, opt_rows[i].metavar ? "=" : "");
                for (const char *h = opt_rows[i].help; *h; h++)
                    printf(*h == '\'' ? "'\\''" : *h == '[' || *h == ']' || *h == ':' ? "\\%c" : "%c", *h);
                printf("]%s'", opt_rows[i].metavar ? ":value:_files" : "");
            }
        printf(" '*:file:_files';;\n");
    }
    printf("    esac\n}\n_lowtide \"$@\"\n");
}

static void fish(void)
{
    for (int c = 0; c < CMD_COUNT; c++) {
        printf("complete -c lowtide -n __fish_use_subcommand -f -a %s -d \"%s\"\n", cmd_rows[c].name, cmd_rows[c].help);
        for (int i = 0; i < OPT_COUNT; i++)
            if (opt_rows[i].cmds & 1u << c)
                printf("complete -c lowtide -n \"__fish_seen_subcommand_from %s\" -l %s %s-d \"%s\"\n", cmd_rows[c].name,
                       opt_rows[i].name, opt_rows[i].metavar ? "-r " : "", opt_rows[i].help);
    }
}

int cmd_completion(const opts *o)
{
    static const struct { const char *name; void (*print)(void); } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (strcmp(o->arg, shells[i].name) == 0) {
            shells[i].print();
            return 0;
        }
    fprintf(stderr, "lowtide: completion %s: expected bash, zsh or fish\n", o->arg);
    return 2;
}
