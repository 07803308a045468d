#include "fetch.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

lt_status fetch_fail(fetch *f, lt_status s, const char *fmt, ...)
{
    char *text = f->a->err.text;
    size_t n = 0, most = sizeof f->a->err.text;
    va_list ap;
    if (f->label[0])
        n = (size_t)snprintf(text, most, "%s: ", f->label);
    va_start(ap, fmt);
    vsnprintf(text + n, most - n, fmt, ap);
    va_end(ap);
    return f->a->err.status = s;
}

bool fetch_is_sha256(const char *s)
{
    return strlen(s) == FETCH_HASH_HEX && strspn(s, "0123456789abcdefABCDEF") == FETCH_HASH_HEX;
}

/* The first of a redirected chain names the real file's hash and size; later ones don't. */
static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    fetch *f = user;
    char text[1024];
    size_t len = n * one < sizeof text - 1 ? n * one : sizeof text - 1;
    memcpy(text, line, len);
    text[len] = 0;
    text[strcspn(text, "\r\n")] = 0;
    char *value = strchr(text, ':');
    if (!value)
        return n * one;
    *value++ = 0;
    value += strspn(value, " \t");
    if (strncmp(value, "W/", 2) == 0)
        value += 2;
    size_t q = strlen(value);
    if (q >= 2 && value[0] == '"' && value[q - 1] == '"') {
        value[q - 1] = 0;
        value++;
    }
    if (strcasecmp(text, "x-linked-etag") == 0) {
        snprintf(f->file->etag, sizeof f->file->etag, "%s", value);
        if (fetch_is_sha256(value))
            snprintf(f->file->sha256, sizeof f->file->sha256, "%s", value);
    } else if (strcasecmp(text, "etag") == 0 && !f->file->etag[0]) {
        snprintf(f->file->etag, sizeof f->file->etag, "%s", value);
    } else if (strcasecmp(text, "x-linked-size") == 0) {
        f->file->size = *value >= '0' && *value <= '9' ? strtoll(value, NULL, 10) : -1;
    }
    return n * one;
}

static size_t drop_body(char *data, size_t one, size_t n, void *user)
{
    (void)data, (void)user;
    return one * n;
}

static size_t write_body(char *data, size_t one, size_t n, void *user)
{
    fetch *f = user;
    f->taken += (curl_off_t)(one * n);
    if (f->file->size >= 0 && f->taken > f->file->size) { /* or a server fills the disk */
        f->too_long = true;
        return 0;
    }
    if (fwrite(data, one, n, f->stream) != n) {
        f->write_failed = true;
        return 0;
    }
    return one * n;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    fetch *f = user;
    (void)up_total, (void)up_now;
    if (!f->a->o->v[OPT_quiet].set && isatty(2) && total > 0) {
        curl_off_t done = f->have + now, all = f->have + total;
        if (f->total)
            done += f->before, all = f->total;
        app_progress(NULL, f->label[0] ? f->label : "downloading", (uint64_t)done, (uint64_t)all);
    }
    return app_interrupted();
}

static lt_status perform(fetch *f, const char *what)
{
    char detail[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(f->curl, CURLOPT_ERRORBUFFER, detail);
    CURLcode c = f->result = curl_easy_perform(f->curl);
    app_progress_end();
    curl_easy_setopt(f->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &f->code);
    if (c == CURLE_ABORTED_BY_CALLBACK)
        return fetch_fail(f, LT_E_CANCELED, "%s: stopped; pull it again to go on", what);
    if (f->too_long)
        return fetch_fail(f, LT_E_IO, "%s: more arrives than the %lld bytes the server spoke of", what, (long long)f->file->size);
    if (f->write_failed)
        return fetch_fail(f, LT_E_IO, "%s: write failed: %s", f->part, strerror(errno));
    if (c != CURLE_OK)
        return fetch_fail(f, LT_E_IO, "%s: %s", what, detail[0] ? detail : curl_easy_strerror(c));
    if (f->code == 401 || f->code == 403)
        return fetch_fail(f, LT_E_IO, "%s: the server says %ld: the model may be gated; accept its terms there and set HF_TOKEN", what, f->code);
    if (f->code == 404)
        return fetch_fail(f, LT_E_NOT_FOUND, "%s: no such file there (404)", what);
    if (f->code >= 400)
        return fetch_fail(f, LT_E_IO, "%s: the server says %ld", what, f->code);
    return LT_OK;
}

static bool same_host(const char *a, const char *b)
{
    const char *x = strstr(a, "://"), *y = strstr(b, "://");
    if (!x || !y)
        return false;
    size_t n = (size_t)(x - a) + 3 + strcspn(x + 3, "/?#"), m = (size_t)(y - b) + 3 + strcspn(y + 3, "/?#");
    return n == m && strncasecmp(a, b, n) == 0;
}

/* Options of a request to `url`; the token goes to the host it is meant for only. */
static void common_options(fetch *f, const char *url, bool token_too)
{
    curl_easy_reset(f->curl);
    curl_easy_setopt(f->curl, CURLOPT_URL, url);
    curl_easy_setopt(f->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(f->curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(f->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(f->curl, CURLOPT_REDIR_PROTOCOLS_STR, strncasecmp(url, "https", 5) == 0 ? "https" : "http,https");
    curl_easy_setopt(f->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(f->curl, CURLOPT_USERAGENT, "lowtide");
    curl_easy_setopt(f->curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_TIME, 60L);
    const char *token = getenv("HF_TOKEN");
    if (token_too && token && *token) { /* curl drops it when a redirect leaves the host */
        curl_easy_setopt(f->curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(f->curl, CURLOPT_XOAUTH2_BEARER, token);
    }
}

#define MOST_TEXT ((size_t)16 << 20) /* a repository's listing or index is far smaller */
typedef struct buffer { char *v; size_t n; bool too_long; } buffer;

static size_t keep_body(char *data, size_t one, size_t n, void *user)
{
    buffer *b = user;
    b->too_long = one * n > MOST_TEXT - b->n;
    if (b->too_long)
        return 0;
    char *v = realloc(b->v, b->n + one * n + 1);
    if (!v)
        return 0;
    memcpy(v + b->n, data, one * n);
    b->v = v;
    b->n += one * n;
    v[b->n] = 0;
    return one * n;
}

/* Redirects are followed by hand until the hash and the size are known: a store's signed address answers
 * GET and may refuse HEAD. */
static lt_status ask_head(fetch *f)
{
    char url[2048];
    lt_status s = LT_OK;
    f->file->size = -1;
    snprintf(url, sizeof url, "%s", f->file->url);
    for (int hop = 0; hop < 10; hop++) {
        common_options(f, url, same_host(url, f->file->url));
        curl_easy_setopt(f->curl, CURLOPT_FOLLOWLOCATION, 0L);
        curl_easy_setopt(f->curl, CURLOPT_NOBODY, 1L);
        curl_easy_setopt(f->curl, CURLOPT_HEADERFUNCTION, on_header);
        curl_easy_setopt(f->curl, CURLOPT_HEADERDATA, f);
        curl_easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, drop_body);
        if ((s = perform(f, f->file->url)) != LT_OK)
            return s;
        char *next = NULL;
        curl_easy_getinfo(f->curl, CURLINFO_REDIRECT_URL, &next);
        if (!next || (f->file->sha256[0] && f->file->size >= 0))
            break;
        if (snprintf(url, sizeof url, "%s", next) >= (int)sizeof url)
            return fetch_fail(f, LT_E_IO, "%s: it redirects to an address that is too long", f->file->url);
    }
    if (f->file->size < 0 && f->code < 300)
        curl_easy_getinfo(f->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &f->file->size);
    return s;
}

static void name_part(fetch *f)
{
    char tag[65];
    size_t n = 0;
    for (const char *c = f->file->etag; *c && n < sizeof tag - 1; c++)
        if (isalnum((unsigned char)*c))
            tag[n++] = *c;
    tag[n] = 0;
    snprintf(f->part, sizeof f->part, "%s.part%s%s", f->file->out, n ? "-" : "", tag);
}

/* Opens the part to go on where it ends, alone. */
static lt_status open_part(fetch *f)
{
    struct stat st;
    int fd = open(f->part, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    f->stream = fd >= 0 ? fdopen(fd, "ab") : NULL;
    if (!f->stream) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return fetch_fail(f, LT_E_IO, "%s: cannot be created: %s", f->part, strerror(e));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return fetch_fail(f, LT_E_BUSY, "%s: another pull is at work on it", f->part);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return fetch_fail(f, LT_E_IO, "%s is not a regular file", f->part);
    /* Between opening and locking it another pull may have finished it: then this is the whole file. */
    struct stat now;
    if (stat(f->part, &now) != 0 || now.st_dev != st.st_dev || now.st_ino != st.st_ino)
        return fetch_fail(f, LT_E_BUSY, "%s: another pull has just finished it", f->part);
    f->have = st.st_size;
    /* Without a tag nobody knows what the part is a part of. */
    if ((!f->file->etag[0] || (f->file->size >= 0 && f->have > f->file->size)) && f->have) {
        if (ftruncate(fd, 0) != 0)
            return fetch_fail(f, LT_E_IO, "%s: cannot be begun anew: %s", f->part, strerror(errno));
        f->have = 0;
    }
    return LT_OK;
}

static lt_status attempt(fetch *f)
{
    common_options(f, f->file->url, true);
    curl_easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, write_body);
    curl_easy_setopt(f->curl, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(f->curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(f->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(f->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(f->curl, CURLOPT_XFERINFODATA, f);
    f->taken = f->have;
    if (f->have)
        curl_easy_setopt(f->curl, CURLOPT_RESUME_FROM_LARGE, f->have);
    lt_status s = perform(f, f->file->url);
    if (fflush(f->stream) != 0 && s == LT_OK)
        s = fetch_fail(f, LT_E_IO, "%s: write failed: %s", f->part, strerror(errno));
    return s;
}

/* Worth trying again: the line or the server failed, not the request. */
static bool is_transient(const fetch *f)
{
    switch (f->result) {
    case CURLE_PARTIAL_FILE: case CURLE_RECV_ERROR: case CURLE_SEND_ERROR: case CURLE_GOT_NOTHING: case CURLE_OPERATION_TIMEDOUT:
    case CURLE_COULDNT_CONNECT: case CURLE_HTTP2: case CURLE_HTTP2_STREAM: case CURLE_SSL_CONNECT_ERROR:
        return !f->write_failed && !f->too_long;
    case CURLE_HTTP_RETURNED_ERROR: return f->code == 429 || f->code >= 500;
    default: return false;
    }
}

static void wait_a_while(unsigned tenths)
{
    for (unsigned i = 0; i < tenths && !app_interrupted(); i++)
        usleep(100000);
}

#define TRIES 4 /* in a row that bring nothing */

static lt_status download(fetch *f)
{
    lt_status s = open_part(f);
    bool whole = s == LT_OK && f->file->size > 0 && f->have == f->file->size; /* the hash decides */
    curl_off_t most = f->have; /* what is begun anew and ends where it ended before brings nothing */
    for (int left = TRIES; s == LT_OK && !whole;) {
        struct stat st;
        s = attempt(f);
        bool no_range = f->have && (f->result == CURLE_RANGE_ERROR || (s == LT_OK && f->code != 206));
        if (fstat(fileno(f->stream), &st) == 0)
            f->have = st.st_size;
        if (no_range) { /* the server cannot go on in the middle: from the start */
            if (ftruncate(fileno(f->stream), 0) != 0 || --left == 0)
                return fetch_fail(f, LT_E_IO, "%s: cannot be begun anew", f->part);
            f->have = 0;
            s = LT_OK;
            continue;
        }
        left = f->have > most ? TRIES : left - 1;
        most = f->have > most ? f->have : most;
        if (s == LT_OK || !is_transient(f) || !left)
            break;
        app_progress_end();
        fprintf(stderr, "lowtide: %s; going on at byte %lld\n", f->a->err.text, (long long)f->have);
        wait_a_while(5u << (TRIES - left));
        s = app_interrupted() ? fetch_fail(f, LT_E_CANCELED, "%s: stopped; pull it again to go on", f->file->url) : LT_OK;
    }
    if (f->too_long && ftruncate(fileno(f->stream), 0) != 0)
        unlink(f->part); /* it is no part of what the server spoke of */
    if (s == LT_OK && fsync(fileno(f->stream)) != 0)
        s = fetch_fail(f, LT_E_IO, "%s: write failed: %s", f->part, strerror(errno));
    return s;
}

static lt_status hash_part(fetch *f, char hex[FETCH_HASH_HEX + 1], uint64_t *bytes)
{
    FILE *in = fopen(f->part, "rbe");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    static const size_t step = 1 << 20;
    unsigned char *buf = malloc(step), sum[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    bool ok = in && md && buf && EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    *bytes = 0;
    for (size_t n; ok && (n = fread(buf, 1, step, in)) > 0; *bytes += n)
        ok = EVP_DigestUpdate(md, buf, n);
    ok = ok && !ferror(in) && EVP_DigestFinal_ex(md, sum, &len);
    for (unsigned i = 0; ok && i < len; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    free(buf);
    EVP_MD_CTX_free(md);
    if (in)
        fclose(in);
    return ok ? LT_OK : fetch_fail(f, LT_E_IO, "%s: cannot be read back for its hash", f->part);
}

static lt_status check_and_rename(fetch *f, const char *want, char hex[FETCH_HASH_HEX + 1])
{
    uint64_t bytes;
    lt_status s = hash_part(f, hex, &bytes);
    if (s != LT_OK)
        return s;
    if (f->file->size >= 0 && bytes != (uint64_t)f->file->size)
        return fetch_fail(f, LT_E_IO, "%s: %lu of %lld bytes arrived; pull it again to go on", f->part, bytes, (long long)f->file->size);
    if (!want)
        want = f->file->sha256;
    if (*want && strcasecmp(want, hex) != 0) {
        unlink(f->part);
        return fetch_fail(f, LT_E_FORMAT, "%s: its SHA-256 is %s, expected %s; what arrived was removed", f->file->url, hex, want);
    }
    if (rename(f->part, f->file->out) != 0)
        return fetch_fail(f, LT_E_IO, "%s: cannot be renamed to %s: %s", f->part, f->file->out, strerror(errno));
    return LT_OK;
}

/* --- the calls ------------------------------------------------------------------------ */

lt_status fetch_open(fetch *f, app *a)
{
    *f = (fetch){.a = a};
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(f->curl = curl_easy_init()))
        return fetch_fail(f, LT_E_HOST_OOM, "libcurl could not be started");
    return LT_OK;
}

void fetch_close(fetch *f)
{
    curl_easy_cleanup(f->curl);
    curl_global_cleanup();
}

lt_status fetch_text(fetch *f, const char *url, char **text, size_t *bytes)
{
    buffer b = {0};
    common_options(f, url, true);
    curl_easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, keep_body);
    curl_easy_setopt(f->curl, CURLOPT_WRITEDATA, &b);
    lt_status s = perform(f, url);
    if (b.too_long)
        s = fetch_fail(f, LT_E_FORMAT, "%s: the server's answer is over 16 MiB, more than any listing or index", url);
    else if (s == LT_OK && !b.v)
        s = fetch_fail(f, LT_E_FORMAT, "%s: the server's answer is empty", url);
    if (s != LT_OK) {
        free(b.v);
        return s;
    }
    *text = b.v;
    *bytes = b.n;
    return LT_OK;
}

lt_status fetch_look(fetch *f, fetch_file *file)
{
    f->file = file;
    file->etag[0] = file->sha256[0] = 0;
    if (app_interrupted())
        return fetch_fail(f, LT_E_CANCELED, "%s: stopped; pull it again to go on", file->url);
    return ask_head(f);
}

lt_status fetch_get(fetch *f, fetch_file *file, const char *want, char hex[FETCH_HASH_HEX + 1])
{
    f->file = file;
    f->have = 0;
    f->stream = NULL;
    name_part(f);
    lt_status s = download(f);
    if (s == LT_OK)
        s = check_and_rename(f, want, hex);
    if (f->stream) /* and with it the lock */
        fclose(f->stream);
    f->stream = NULL;
    return s;
}
