/* fetch.h - one file over HTTP: resumable, checked by size and SHA-256, renamed when whole.
 *
 * What has arrived is kept as FILE.part-ETAG, so that a later fetch goes on where this one stopped, and never
 * on top of another version. */
#ifndef APP_FETCH_H
#define APP_FETCH_H

#include <curl/curl.h>

#include "app.h"

#define FETCH_HASH_HEX 64

typedef struct fetch_file {
    char      *url, *out;
    char       etag[256], sha256[FETCH_HASH_HEX + 1]; /* "" when not known */
    curl_off_t size;                                  /* -1: not known */
    bool       optional;                              /* may be absent on the server */
    bool       there;                                 /* under its name already: it was whole, or it would not bear it */
} fetch_file;

typedef struct fetch {
    app        *a;
    CURL       *curl;
    fetch_file *file;       /* at work */
    char        label[48];  /* "part 2 of 3", before progress and errors; "": one file alone */
    curl_off_t  before, total; /* bytes of the files before this one, and of all; total 0: not known */
    char        part[1200]; /* path of what has arrived */
    curl_off_t  have;       /* its bytes */
    FILE       *stream;
    long        code;
    CURLcode    result;
    curl_off_t  taken;      /* bytes of the file, with those of the answer at work */
    bool        write_failed, too_long;
} fetch;

lt_status fetch_open(fetch *f, app *a);
void fetch_close(fetch *f);
/* Fills a->err, with the label before it; returns s. */
lt_status fetch_fail(fetch *f, lt_status s, const char *fmt, ...) LT_PRINTF(3, 4);
bool fetch_is_sha256(const char *s);

lt_status fetch_text(fetch *f, const char *url, char **text, size_t *bytes); /* free with free() */
/* Asks for hash and size. LT_E_NOT_FOUND: the server has no such file. */
lt_status fetch_look(fetch *f, fetch_file *file);
/* After fetch_look. want: the hash the user insists on, NULL: the server's; hex: what it is. */
lt_status fetch_get(fetch *f, fetch_file *file, const char *want, char hex[FETCH_HASH_HEX + 1]);

#endif
