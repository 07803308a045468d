/* opts.c - parser and help, from opts.def and cmds.def. */
#include "opts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <lowtide/base.h>
#include <lowtide/chat.h>

const opt_row opt_rows[OPT_COUNT] = {
#define OPT(id, name, brief, metavar, type, least, most, cmds, help) {name, brief, metavar, OPT_##type, least, most, cmds, help},
#include "opts.def"
#undef OPT
};

const cmd_row cmd_rows[CMD_COUNT] = {
#define CMD(ID, name, fn, args, most, help) {name, fn, args, most, help},
#include "cmds.def"
#undef CMD
};

static bool parse_bytes(const char *s, uint64_t *out)
{
    char *end;
    double v = strtod(s, &end);
    const char *digits = end; /* no hexadecimal, no exponent */
    static const char unit[] = "KMGT";
    const char *u = *end ? strchr(unit, *end >= 'a' ? *end - 32 : *end) : NULL;
    if (end == s || s[0] < '0' || s[0] > '9')
        return false;
    if (u) {
        for (const char *k = unit; k <= u; k++)
            v *= 1024;
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end || strspn(s, "0123456789.") != (size_t)(digits - s) || !(v < 9e18))
        return false;
    *out = (uint64_t)v;
    return true;
}

static bool set_value(const opt_row *r, const char *text, opt_value *v)
{
    char *end;
    errno = 0;
    switch (r->type) {
    case OPT_STR: v->s = text; break;
    case OPT_BYTES:
        if (!parse_bytes(text, &v->u) || !v->u) {
            fprintf(stderr, "lowtide: --%s %s: expected a size, as 512M or 4G\n", r->name, text);
            return false;
        }
        break;
    case OPT_UINT:
        v->u = strtoull(text, &end, 10);
        if (end == text || *end || errno || *text < '0' || *text > '9' || (double)v->u < r->least || (double)v->u > r->most) {
            fprintf(stderr, "lowtide: --%s %s: expected a whole number from %.0f to %.0f\n", r->name, text, r->least, r->most);
            return false;
        }
        break;
    case OPT_FLOAT:
        v->f = strtod(text, &end);
        if (end == text || *end || *text == ' ' || !(v->f >= r->least && v->f <= r->most)) {
            fprintf(stderr, "lowtide: --%s %s: expected a number from %g to %g\n", r->name, text, r->least, r->most);
            return false;
        }
        break;
    case OPT_FLAG: break;
    }
    v->set = true;
    return true;
}

static int find_opt(const char *word, size_t len, bool brief, cmd_id cmd)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        const opt_row *r = &opt_rows[i];
        if (!(r->cmds & 1u << cmd))
            continue;
        if (brief ? len == 1 && r->brief == word[0] : strlen(r->name) == len && memcmp(r->name, word, len) == 0)
            return i;
    }
    return -1;
}

/* One option at argv[*i]; moves *i past its value. */
static bool parse_opt(int argc, char **argv, int *i, opts *o)
{
    const char *word = argv[*i];
    bool brief = word[1] != '-';
    const char *name = word + (brief ? 1 : 2), *eq = brief ? NULL : strchr(name, '=');
    size_t len = brief ? 1 : eq ? (size_t)(eq - name) : strlen(name);
    int k = find_opt(name, len, brief, o->cmd);
    if (k < 0) {
        fprintf(stderr, "lowtide: %s: no such option of '%s'; see lowtide help %s\n", word, cmd_rows[o->cmd].name,
                cmd_rows[o->cmd].name);
        return false;
    }
    const opt_row *r = &opt_rows[k];
    const char *value = eq ? eq + 1 : brief && name[1] ? name + 1 : NULL; /* -n5 is -n 5 */
    if (r->type == OPT_FLAG && value) {
        fprintf(stderr, "lowtide: %s: --%s takes no value\n", word, r->name);
        return false;
    }
    if (r->type != OPT_FLAG && !value) {
        if (*i + 1 >= argc) {
            fprintf(stderr, "lowtide: --%s needs a value: %s\n", r->name, r->metavar);
            return false;
        }
        value = argv[++*i];
    }
    return set_value(r, value, &o->v[k]);
}

static int find_cmd(const char *name)
{
    for (int i = 0; i < CMD_COUNT; i++)
        if (strcmp(cmd_rows[i].name, name) == 0)
            return i;
    return -1;
}

static opts_result wrong(const char *fmt, ...) LT_PRINTF(1, 2);
static opts_result wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("lowtide: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return PARSE_WRONG;
}

/* Options that exclude each other, or mean nothing alone, are refused rather than ignored. */
static opts_result check_sense(const opts *o)
{
    const opt_value *v = o->v;
    bool text = v[OPT_prompt].set || v[OPT_file].set;
    if (v[OPT_prompt].set && v[OPT_file].set)
        return wrong("--prompt and --file: give one of them");
    if (v[OPT_decode].set && text)
        return wrong("--decode takes token ids, --prompt and --file text: give one of them");
    if (o->cmd == CMD_INDEX_RUN && text && !v[OPT_chat].set && (v[OPT_system].set || v[OPT_template].set))
        return wrong("--%s belongs to a chat: add --chat", opt_rows[v[OPT_system].set ? OPT_system : OPT_template].name);
    if (v[OPT_quiet].set && v[OPT_verbose].set)
        return wrong("--quiet and --verbose: give one of them");
    return PARSE_RUN;
}

/* help, --help, version: everything that needs no command. */
static opts_result parse_general(int argc, char **argv)
{
    if (argc < 2) {
        opts_help(stderr, -1);
        return PARSE_WRONG;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        int c = argc > 2 ? find_cmd(argv[2]) : -1;
        if (argc > 2 && c < 0)
            return wrong("'%s' is no command; see lowtide help", argv[2]);
        opts_help(stdout, c);
        return PARSE_DONE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("lowtide %s\n", lt_version());
        return PARSE_DONE;
    }
    return find_cmd(argv[1]) < 0 ? wrong("'%s' is no command; see lowtide help", argv[1]) : PARSE_RUN;
}

opts_result opts_parse(int argc, char **argv, opts *o)
{
    memset(o, 0, sizeof *o);
    opts_result first = parse_general(argc, argv);
    if (first != PARSE_RUN)
        return first;
    int c = find_cmd(argv[1]);
    o->cmd = (cmd_id)c;
    bool plain = false;
    for (int i = 2; i < argc; i++) {
        if (!plain && strcmp(argv[i], "--") == 0) {
            plain = true;
        } else if (!plain && argv[i][0] == '-' && argv[i][1]) {
            if (!parse_opt(argc, argv, &i, o))
                return PARSE_WRONG;
        } else if (o->arg || !cmd_rows[c].most) {
            return wrong("'%s': one argument too many for '%s'", argv[i], cmd_rows[c].name);
        } else {
            o->arg = argv[i];
        }
    }
    if (o->v[OPT_help].set) {
        opts_help(stdout, c);
        return PARSE_DONE;
    }
    if (!o->arg && cmd_rows[c].most && cmd_rows[c].args[0] != '[')
        return wrong("'%s' needs %s; see lowtide help %s", cmd_rows[c].name, cmd_rows[c].args, cmd_rows[c].name);
    return check_sense(o);
}

static void help_opts(FILE *out, cmd_id cmd)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        const opt_row *r = &opt_rows[i];
        if (!(r->cmds & 1u << cmd))
            continue;
        char left[64];
        snprintf(left, sizeof left, "%s%c%s--%s %s", r->brief ? "-" : " ", r->brief ? r->brief : ' ', r->brief ? ", " : "  ",
                 r->name, r->metavar ? r->metavar : "");
        fprintf(out, "  %-28s %s\n", left, r->help);
    }
}

const char *opts_note(cmd_id cmd)
{
    if (cmd == CMD_INDEX_PULL)
        return "A GGUF model in parts (NAME-00001-of-00003.gguf) is pulled whole, whichever part is named. Of NAME.safetensors.index.json\n"
               "come the shards it names, config.json, tokenizer.json and what else of these is there, into the folder REPO or --output.\n"
               "A pull that was stopped goes on where it stopped when it is repeated.\n";
    return NULL;
}

void opts_help(FILE *out, int cmd)
{
    if (cmd >= 0) {
        const cmd_row *c = &cmd_rows[cmd];
        fprintf(out, "usage: lowtide %s %s [options]\n%s.\n\n", c->name, c->args, c->help);
        help_opts(out, (cmd_id)cmd);
        if (opts_note((cmd_id)cmd))
            fprintf(out, "\n%s", opts_note((cmd_id)cmd));
        if (cmd == CMD_INDEX_RUN) {
            fprintf(out, "\nchat templates:\n");
            for (int i = 0; i < LT_CHAT_COUNT; i++)
                fprintf(out, "  %s\n", lt_chat_name((lt_chat_template)i));
        }
        return;
    }
    fprintf(out, "usage: lowtide COMMAND [ARGUMENT] [options]\n"
                 "Runs language models larger than memory, inside a budget you name.\n\n");
    for (int i = 0; i < CMD_COUNT; i++)
        fprintf(out, "  %-11s %s\n", cmd_rows[i].name, cmd_rows[i].help);
    fprintf(out, "\nlowtide help COMMAND lists its options. Exit codes: 0 done, 2 usage, 3 bad file, 4 does not fit,\n"
                 "5 device or system failure, 130 interrupted.\n");
}
