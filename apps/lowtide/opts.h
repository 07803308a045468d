/* opts.h - the command line, parsed by one table. */
#ifndef APP_OPTS_H
#define APP_OPTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cmd_id {
#define CMD(ID, name, fn, args, most, help) CMD_INDEX_##ID,
#include "cmds.def"
#undef CMD
    CMD_COUNT
} cmd_id;

enum {
#define CMD(ID, name, fn, args, most, help) CMD_##ID = 1 << CMD_INDEX_##ID,
#include "cmds.def"
#undef CMD
};

typedef enum opt_id {
#define OPT(id, name, brief, metavar, type, least, most, cmds, help) OPT_##id,
#include "opts.def"
#undef OPT
    OPT_COUNT
} opt_id;

typedef enum opt_type { OPT_STR, OPT_BYTES, OPT_UINT, OPT_FLOAT, OPT_FLAG } opt_type;

typedef struct opt_row {
    const char *name;
    char        brief;
    const char *metavar;
    opt_type    type;
    double      least, most;
    unsigned    cmds;
    const char *help;
} opt_row;

typedef struct opt_value { bool set; const char *s; uint64_t u; double f; } opt_value;

typedef struct opts {
    cmd_id      cmd;
    opt_value   v[OPT_COUNT];
    const char *arg; /* the positional one; NULL when absent */
} opts;

typedef int cmd_fn(const opts *o);
typedef struct cmd_row { const char *name; cmd_fn *fn; const char *args; int most; const char *help; } cmd_row;
extern const opt_row opt_rows[OPT_COUNT];
extern const cmd_row cmd_rows[CMD_COUNT];

typedef enum opts_result { PARSE_RUN, PARSE_DONE /* help was printed */, PARSE_WRONG /* said on stderr */ } opts_result;
opts_result opts_parse(int argc, char **argv, opts *o);
void opts_help(FILE *out, int cmd /* -1: all */);
const char *opts_note(cmd_id cmd); /* what the options do not say; NULL: nothing */

#define CMD(ID, name, fn, args, most, help) cmd_fn fn;
#include "cmds.def"
#undef CMD

#endif
