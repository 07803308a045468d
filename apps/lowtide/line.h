/* line.h - lines typed in a terminal, with editing and history; plain lines from anything else. */
#ifndef APP_LINE_H
#define APP_LINE_H

#include <stdbool.h>

typedef struct line_reader line_reader;

/* NULL when memory is short. Edits only when stdin and stderr are terminals. A signal ends the line when
 * `stop` then says so. */
line_reader *line_open(const char *prompt, bool (*stop)(void));
/* While a terminal's line is awaited, four times a second; true when it wrote to stderr. */
void line_meanwhile(line_reader *r, bool (*tick)(void *user), void *user);
/* The next line without its newline, NULL at the end of input or on Ctrl-C. Lives until the next call. */
const char *line_read(line_reader *r);
void line_close(line_reader *r);

#endif
