/* app.h - what the subcommands share: a model opened, planned and at work, from the options. */
#ifndef APP_APP_H
#define APP_APP_H

#include <jansson.h>

#include <lowtide/chat.h>
#include <lowtide/plan.h>
#include <lowtide/session.h>
#include <lowtide/share.h>
#include <lowtide/tokenizer.h>
#include <lowtide/trace.h>

#include "opts.h"

typedef struct app {
    const opts   *o;
    lt_ctx       *ctx;
    lt_device    *dev;
    lt_model     *model;
    lt_tokenizer *tok;
    lt_profile    profile;
    lt_plan      *plan;
    uint64_t      reserve; /* of the device, held free all along */
    lt_session   *session;
    lt_share     *share;   /* NULL: alone on the device */
    lt_trace     *trace;
    lt_err        err;
} app;

/* Exit code of a status. */
int app_exit(lt_status s);
/* Prints the error of `a` and returns its exit code. */
int app_fail(const app *a);
/* Each returns LT_OK or leaves a->err filled. app_close takes any state. */
lt_status app_open(app *a, const opts *o);       /* context with logging */
lt_status app_open_device(app *a);
lt_status app_open_model(app *a);                /* o->arg */
lt_status app_open_tokenizer(app *a);
/* rows of logits a pass wished for; a prompt of `prompt` tokens and `answer` more are coming, 0: unknown. */
lt_status app_make_plan(app *a, uint32_t rows, uint64_t prompt, uint64_t answer);
lt_status app_start(app *a);                     /* the session */
lt_status app_close(app *a);                     /* the trace's last write can fail */
/* The text of --prompt or --file; free with free(). LT_E_INVALID when neither is given. */
lt_status app_text(app *a, char **text, size_t *bytes);
lt_status app_ids_text(app *a, char **text, size_t *bytes); /* of --decode, zero-terminated */

void app_print_plan(const app *a, FILE *out);
void app_print_accounting(const app *a, FILE *out);
json_t *app_plan_json(const app *a);
json_t *app_report_json(const app *a); /* everything but tokens and text */
/* Writes j (and drops it) to the file of --report; true when written or not asked, else it said why. */
bool app_write_report(app *a, json_t *j);
void app_print_json(json_t *j); /* to stdout; drops it */
json_t *app_string(const char *s); /* JSON is UTF-8; a name that is not says so */

/* Whether the file of option `id` can be written, before hours of work for it. */
lt_status app_check_output(app *a, opt_id id);
/* The file of option `id`, under a temporary name until closed with `keep`. */
typedef struct app_file { FILE *f; char *path, *temp; opt_id id; } app_file;
lt_status app_file_open(app *a, opt_id id, app_file *f);
lt_status app_file_close(app *a, app_file *f, bool keep);

/* From here on Ctrl-C and SIGTERM cancel the session of this app, once it has one, so that the command ends
 * with its accounting; a second one ends the process at once. */
void app_catch_interrupt(app *a);
void app_wait_interrupt(void); /* the command itself looks at app_interrupted() */
bool app_interrupted(void);
bool app_terminated(void); /* by SIGTERM: not only the answer under way ends */
void app_forget_interrupt(void);

/* A line that redraws itself on a terminal's stderr and is silent elsewhere. */
lt_progress_fn app_progress;
void app_progress_end(void);

const char *app_bytes(uint64_t bytes, char buf[24]);

#endif
