/* main.c - finds the subcommand and runs it. */
#include <signal.h>
#include <stdio.h>

#include "opts.h"

int main(int argc, char **argv)
{
    opts o;
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not a death without accounting */
    if (!opts_parse(argc, argv, &o))
        return 2;
    int code = cmd_rows[o.cmd].fn(&o);
    if (fflush(stdout) != 0 && code == 0) {
        fprintf(stderr, "lowtide: writing to standard output failed\n");
        return 5;
    }
    return code;
}
