/* main.c - finds the subcommand and runs it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "opts.h"

/* A closed standard descriptor would be taken by the next file opened, and text meant for it would land
 * in that file. Each is filled with /dev/null opened the wrong way round: using it stays an error. */
static void fill_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(5);
}

int main(int argc, char **argv)
{
    opts o;
    int code = 0;
    fill_standard_files();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not a death without accounting */
    switch (opts_parse(argc, argv, &o)) {
    case PARSE_RUN: code = cmd_rows[o.cmd].fn(&o); break;
    case PARSE_DONE: break;
    case PARSE_WRONG: code = 2; break;
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fprintf(stderr, "lowtide: writing to standard output failed\n");
        return 5;
    }
    return code;
}
