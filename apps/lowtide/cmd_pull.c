/* cmd_pull.c - downloads a model file: resumable, checked by size and SHA-256, renamed when whole.
 *
 * A part under way is kept as FILE.part-ETAG, so that a later pull goes on where this one stopped,
 * and never on top of another version. Of a model split into parts all are pulled, whichever is named. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "app.h"

#define HUB "https://huggingface.co"
#define HASH_HEX 64

typedef struct pull {
    app      a;
    CURL    *curl;
    char     url[2048], out[1024], part[1200];
    char     etag[256], sha256[HASH_HEX + 1]; /* "" when not known */
    curl_off_t size;                          /* -1: not known */
    curl_off_t have;                          /* bytes of the part before this run */
    FILE    *f;
    long     code;
    CURLcode result;
    bool     write_failed;
    unsigned parts; /* 1: the model is one file */
    json_t  *done;
} pull;

static lt_status fail(pull *p, lt_status s, const char *fmt, ...) LT_PRINTF(3, 4);
static lt_status fail(pull *p, lt_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->a.err.text, sizeof p->a.err.text, fmt, ap);
    va_end(ap);
    return p->a.err.status = s;
}

static bool is_sha256(const char *s)
{
    return strlen(s) == HASH_HEX && strspn(s, "0123456789abcdefABCDEF") == HASH_HEX;
}

#define SPLIT_TAIL 20 /* -00001-of-00002.gguf */

/* The "-00001-of-00002.gguf" in a path or URL (which may go on with ? or #); NULL: it is not one of several. */
static char *split_tail(char *path, unsigned *no, unsigned *count)
{
    char *end = path + strcspn(path, "?#");
    int used = 0;
    if (end - path < SPLIT_TAIL || sscanf(end - SPLIT_TAIL, "-%5u-of-%5u.gguf%n", no, count, &used) != 2 || used != SPLIT_TAIL)
        return NULL;
    return *no >= 1 && *no <= *count ? end - SPLIT_TAIL : NULL;
}

/* The first of a redirected chain names the real file's hash and size; later ones don't. */
static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    pull *p = user;
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
        snprintf(p->etag, sizeof p->etag, "%s", value);
        if (is_sha256(value))
            snprintf(p->sha256, sizeof p->sha256, "%s", value);
    } else if (strcasecmp(text, "etag") == 0 && !p->etag[0]) {
        snprintf(p->etag, sizeof p->etag, "%s", value);
    } else if (strcasecmp(text, "x-linked-size") == 0) {
        p->size = strtoll(value, NULL, 10);
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
    pull *p = user;
    if (fwrite(data, one, n, p->f) != n) {
        p->write_failed = true;
        return 0;
    }
    return one * n;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    pull *p = user;
    (void)up_total, (void)up_now;
    if (!p->a.o->v[OPT_quiet].set && isatty(2) && total > 0)
        app_progress(NULL, "downloading", (uint64_t)(p->have + now), (uint64_t)(p->have + total));
    return app_interrupted();
}

static lt_status perform(pull *p, const char *what)
{
    char detail[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(p->curl, CURLOPT_ERRORBUFFER, detail);
    CURLcode c = p->result = curl_easy_perform(p->curl);
    app_progress_end();
    curl_easy_setopt(p->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, &p->code);
    if (c == CURLE_ABORTED_BY_CALLBACK)
        return fail(p, LT_E_CANCELED, "%s: stopped; pull it again to go on", what);
    if (p->write_failed)
        return fail(p, LT_E_IO, "%s: write failed: %s", p->part, strerror(errno));
    if (c != CURLE_OK)
        return fail(p, LT_E_IO, "%s: %s", what, detail[0] ? detail : curl_easy_strerror(c));
    if (p->code == 401 || p->code == 403)
        return fail(p, LT_E_IO, "%s: the server says %ld: the model may be gated; accept its terms there and set HF_TOKEN", what, p->code);
    if (p->code == 404)
        return fail(p, LT_E_NOT_FOUND, "%s: no such file there (404)", what);
    if (p->code >= 400)
        return fail(p, LT_E_IO, "%s: the server says %ld", what, p->code);
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
static void common_options(pull *p, const char *url, bool token_too)
{
    curl_easy_reset(p->curl);
    curl_easy_setopt(p->curl, CURLOPT_URL, url);
    curl_easy_setopt(p->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(p->curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(p->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(p->curl, CURLOPT_REDIR_PROTOCOLS_STR, strncasecmp(url, "https", 5) == 0 ? "https" : "http,https");
    curl_easy_setopt(p->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(p->curl, CURLOPT_USERAGENT, "lowtide");
    curl_easy_setopt(p->curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(p->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(p->curl, CURLOPT_LOW_SPEED_TIME, 60L);
    const char *token = getenv("HF_TOKEN");
    if (token_too && token && *token) { /* curl drops it when a redirect leaves the host */
        curl_easy_setopt(p->curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(p->curl, CURLOPT_XOAUTH2_BEARER, token);
    }
}

typedef struct buffer { char *v; size_t n; } buffer;

static size_t keep_body(char *data, size_t one, size_t n, void *user)
{
    buffer *b = user;
    if (b->n + one * n > (16u << 20)) /* a repository's listing is far smaller */
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

/* OWNER/REPO alone: its only .gguf file, or a list to choose from. */
static lt_status choose_file(pull *p, const char *hub, const char *repo, char *file, size_t bytes)
{
    buffer b = {0};
    char url[2048];
    snprintf(url, sizeof url, "%s/api/models/%s", hub, repo);
    common_options(p, url, true);
    curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, keep_body);
    curl_easy_setopt(p->curl, CURLOPT_WRITEDATA, &b);
    lt_status s = perform(p, url);
    json_t *j = s == LT_OK && b.v ? json_loadb(b.v, b.n, 0, NULL) : NULL, *sib;
    free(b.v);
    if (s != LT_OK)
        return s;
    size_t i, found = 0;
    char names[400] = "";
    json_array_foreach(json_object_get(j, "siblings"), i, sib) {
        const char *name = json_string_value(json_object_get(sib, "rfilename"));
        size_t n = name ? strlen(name) : 0;
        unsigned no = 1, count;
        if (n < 5 || strcasecmp(name + n - 5, ".gguf") != 0)
            continue;
        if (n >= bytes)
            return json_decref(j), fail(p, LT_E_FORMAT, "%s: a file's name of %zu characters is too long", repo, n);
        char kept[512];
        snprintf(kept, sizeof kept, "%s", name);
        if (split_tail(kept, &no, &count) && no != 1)
            continue; /* comes with the first */
        snprintf(file, bytes, "%s", name);
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", found ? ", " : "", name);
        found++;
    }
    json_decref(j);
    if (found == 1)
        return LT_OK;
    return found ? fail(p, LT_E_INVALID, "%s has %zu .gguf files; name one: %s", repo, found, names)
                 : fail(p, LT_E_NOT_FOUND, "%s has no .gguf file, or is no repository of the hub", repo);
}

/* A file's name may hold any character; an address may not. */
static void append_escaped(char *url, const char *path)
{
    char *to = url + strlen(url);
    for (; *path; path++)
        if (isalnum((unsigned char)*path) || strchr("/-._~", *path))
            *to++ = *path;
        else
            to += sprintf(to, "%%%02X", (unsigned char)*path);
    *to = 0;
}

/* Fills url and out from URL, OWNER/REPO/FILE or OWNER/REPO. */
static lt_status find_source(pull *p)
{
    const opts *o = p->a.o;
    const char *arg = o->arg, *hub = o->v[OPT_endpoint].set ? o->v[OPT_endpoint].s : HUB;
    char repo[512], file[512];
    const char *base;
    if (strstr(arg, "://")) {
        if (snprintf(p->url, sizeof p->url, "%s", arg) >= (int)sizeof p->url)
            return fail(p, LT_E_INVALID, "the URL is too long");
        base = strrchr(arg, '/') + 1;
        snprintf(file, sizeof file, "%.*s", (int)strcspn(base, "?#"), base);
    } else {
        const char *first = strchr(arg, '/'), *second = first ? strchr(first + 1, '/') : NULL;
        if (!first || first == arg || !first[1] || strlen(arg) >= sizeof repo)
            return fail(p, LT_E_INVALID, "'%s': expected OWNER/REPO, OWNER/REPO/FILE or a URL", arg);
        snprintf(repo, sizeof repo, "%.*s", second ? (int)(second - arg) : (int)strlen(arg), arg);
        snprintf(file, sizeof file, "%s", second ? second + 1 : "");
        lt_status s = file[0] ? LT_OK : choose_file(p, hub, repo, file, sizeof file);
        if (s != LT_OK)
            return s;
        if ((size_t)snprintf(p->url, sizeof p->url, "%s/%s/resolve/main/", hub, repo) >= sizeof p->url - 3 * sizeof file)
            return fail(p, LT_E_INVALID, "the URL is too long");
        append_escaped(p->url, file);
    }
    base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    if (!o->v[OPT_output].set && (!*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0))
        return fail(p, LT_E_INVALID, "'%s' names no file; give --output FILE", arg);
    snprintf(p->out, sizeof p->out, "%s", o->v[OPT_output].set ? o->v[OPT_output].s : base);
    unsigned no, count;
    p->parts = split_tail(p->url, &no, &count) && split_tail(file, &no, &count) ? count : 1;
    if (p->parts > 1 && (o->v[OPT_output].set || o->v[OPT_sha256].set))
        return fail(p, LT_E_INVALID, "--%s is for one file, '%s' is one of %u parts: all are pulled, under their own names",
                    o->v[OPT_output].set ? "output" : "sha256", base, count);
    return LT_OK;
}

/* Redirects are followed by hand until the hash and the size are known: a store's signed address answers
 * GET and may refuse HEAD. */
static lt_status ask_head(pull *p)
{
    char url[2048];
    lt_status s = LT_OK;
    p->size = -1;
    snprintf(url, sizeof url, "%s", p->url);
    for (int hop = 0; hop < 10; hop++) {
        common_options(p, url, same_host(url, p->url));
        curl_easy_setopt(p->curl, CURLOPT_FOLLOWLOCATION, 0L);
        curl_easy_setopt(p->curl, CURLOPT_NOBODY, 1L);
        curl_easy_setopt(p->curl, CURLOPT_HEADERFUNCTION, on_header);
        curl_easy_setopt(p->curl, CURLOPT_HEADERDATA, p);
        curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, drop_body);
        if ((s = perform(p, p->url)) != LT_OK)
            return s;
        char *next = NULL;
        curl_easy_getinfo(p->curl, CURLINFO_REDIRECT_URL, &next);
        if (!next || (p->sha256[0] && p->size >= 0))
            break;
        if (snprintf(url, sizeof url, "%s", next) >= (int)sizeof url)
            return fail(p, LT_E_IO, "%s: it redirects to an address that is too long", p->url);
    }
    if (p->size < 0 && p->code < 300)
        curl_easy_getinfo(p->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &p->size);
    char tag[65];
    size_t n = 0;
    for (const char *c = p->etag; *c && n < sizeof tag - 1; c++)
        if (isalnum((unsigned char)*c))
            tag[n++] = *c;
    tag[n] = 0;
    snprintf(p->part, sizeof p->part, "%s.part%s%s", p->out, n ? "-" : "", tag);
    return s;
}

/* Opens the part to go on where it ends, alone. */
static lt_status open_part(pull *p)
{
    struct stat st;
    int fd = open(p->part, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    p->f = fd >= 0 ? fdopen(fd, "ab") : NULL;
    if (!p->f) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return fail(p, LT_E_IO, "%s: cannot be created: %s", p->part, strerror(e));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return fail(p, LT_E_BUSY, "%s: another pull is at work on it", p->part);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return fail(p, LT_E_IO, "%s is not a regular file", p->part);
    p->have = st.st_size;
    /* Without a tag nobody knows what the part is a part of. */
    if ((!p->etag[0] || (p->size >= 0 && p->have > p->size)) && p->have) {
        if (ftruncate(fd, 0) != 0)
            return fail(p, LT_E_IO, "%s: cannot be begun anew: %s", p->part, strerror(errno));
        p->have = 0;
    }
    return LT_OK;
}

static lt_status attempt(pull *p)
{
    common_options(p, p->url, true);
    curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, write_body);
    curl_easy_setopt(p->curl, CURLOPT_WRITEDATA, p);
    curl_easy_setopt(p->curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(p->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(p->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(p->curl, CURLOPT_XFERINFODATA, p);
    if (p->have)
        curl_easy_setopt(p->curl, CURLOPT_RESUME_FROM_LARGE, p->have);
    lt_status s = perform(p, p->url);
    if (fflush(p->f) != 0 && s == LT_OK)
        s = fail(p, LT_E_IO, "%s: write failed: %s", p->part, strerror(errno));
    return s;
}

/* Worth trying again: the line or the server failed, not the request. */
static bool is_transient(const pull *p)
{
    switch (p->result) {
    case CURLE_PARTIAL_FILE: case CURLE_RECV_ERROR: case CURLE_SEND_ERROR: case CURLE_GOT_NOTHING: case CURLE_OPERATION_TIMEDOUT:
    case CURLE_COULDNT_CONNECT: case CURLE_HTTP2: case CURLE_HTTP2_STREAM: case CURLE_SSL_CONNECT_ERROR:
        return !p->write_failed;
    case CURLE_HTTP_RETURNED_ERROR: return p->code == 429 || p->code >= 500;
    default: return false;
    }
}

static void wait_a_while(unsigned tenths)
{
    for (unsigned i = 0; i < tenths && !app_interrupted(); i++)
        usleep(100000);
}

#define TRIES 4 /* in a row that bring nothing */

static lt_status download(pull *p)
{
    lt_status s = open_part(p);
    bool whole = s == LT_OK && p->size > 0 && p->have == p->size; /* the hash decides */
    for (int left = TRIES; s == LT_OK && !whole;) {
        curl_off_t before = p->have;
        struct stat st;
        s = attempt(p);
        bool no_range = p->have && (p->result == CURLE_RANGE_ERROR || (s == LT_OK && p->code != 206));
        if (fstat(fileno(p->f), &st) == 0)
            p->have = st.st_size;
        if (no_range) { /* the server cannot go on in the middle: from the start */
            if (ftruncate(fileno(p->f), 0) != 0 || --left == 0)
                return fail(p, LT_E_IO, "%s: cannot be begun anew", p->part);
            p->have = 0;
            s = LT_OK;
            continue;
        }
        left = p->have > before ? TRIES : left - 1;
        if (s == LT_OK || !is_transient(p) || !left)
            break;
        app_progress_end();
        fprintf(stderr, "lowtide: %s; going on at byte %lld\n", p->a.err.text, (long long)p->have);
        wait_a_while(5u << (TRIES - left));
        s = app_interrupted() ? fail(p, LT_E_CANCELED, "%s: stopped; pull it again to go on", p->url) : LT_OK;
    }
    if (s == LT_OK && fsync(fileno(p->f)) != 0)
        s = fail(p, LT_E_IO, "%s: write failed: %s", p->part, strerror(errno));
    return s;
}

static lt_status hash_part(pull *p, char hex[HASH_HEX + 1], uint64_t *bytes)
{
    FILE *f = fopen(p->part, "rbe");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    static const size_t step = 1 << 20;
    unsigned char *buf = malloc(step), sum[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    bool ok = f && md && buf && EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    *bytes = 0;
    for (size_t n; ok && (n = fread(buf, 1, step, f)) > 0; *bytes += n)
        ok = EVP_DigestUpdate(md, buf, n);
    ok = ok && !ferror(f) && EVP_DigestFinal_ex(md, sum, &len);
    for (unsigned i = 0; ok && i < len; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    free(buf);
    EVP_MD_CTX_free(md);
    if (f)
        fclose(f);
    return ok ? LT_OK : fail(p, LT_E_IO, "%s: cannot be read back for its hash", p->part);
}

static lt_status check_and_rename(pull *p, char hex[HASH_HEX + 1])
{
    uint64_t bytes;
    lt_status s = hash_part(p, hex, &bytes);
    if (s != LT_OK)
        return s;
    if (p->size >= 0 && bytes != (uint64_t)p->size)
        return fail(p, LT_E_IO, "%s: %lu of %lld bytes arrived; pull it again to go on", p->part, bytes, (long long)p->size);
    const char *want = p->a.o->v[OPT_sha256].set ? p->a.o->v[OPT_sha256].s : p->sha256;
    if (*want && strcasecmp(want, hex) != 0) {
        unlink(p->part);
        return fail(p, LT_E_FORMAT, "%s: its SHA-256 is %s, expected %s; what arrived was removed", p->url, hex, want);
    }
    if (rename(p->part, p->out) != 0)
        return fail(p, LT_E_IO, "%s: cannot be renamed to %s: %s", p->part, p->out, strerror(errno));
    return LT_OK;
}

static void set_part(char *path, unsigned i)
{
    unsigned no, count;
    char digits[6], *tail = split_tail(path, &no, &count);
    snprintf(digits, sizeof digits, "%05u", i % 100000);
    memcpy(tail + 1, digits, 5);
}

static lt_status pull_one(pull *p)
{
    char hex[HASH_HEX + 1] = "";
    p->etag[0] = p->sha256[0] = 0;
    p->have = 0;
    p->f = NULL;
    lt_status s = ask_head(p);
    if (s == LT_OK)
        s = download(p);
    if (s == LT_OK)
        s = check_and_rename(p, hex);
    if (p->f) /* and with it the lock */
        fclose(p->f);
    if (s != LT_OK)
        return s;
    json_array_append_new(p->done, json_pack("{s:o, s:s, s:s}", "file", app_string(p->out), "url", p->url, "sha256", hex));
    if (!p->a.o->v[OPT_json].set) {
        printf("%s  %s\n", hex, p->out);
        fflush(stdout);
    }
    return LT_OK;
}

static lt_status work(pull *p)
{
    const opts *o = p->a.o;
    if (o->v[OPT_sha256].set && !is_sha256(o->v[OPT_sha256].s))
        return fail(p, LT_E_INVALID, "--sha256 %s: expected 64 hexadecimal digits", o->v[OPT_sha256].s);
    lt_status s = find_source(p);
    unsigned there = 0;
    for (unsigned i = 1; s == LT_OK && i <= p->parts; i++) {
        if (p->parts > 1) {
            set_part(p->url, i);
            set_part(p->out, i);
        }
        if (access(p->out, F_OK) == 0)
            there++; /* of several parts: whole, or it would not bear its name */
        else
            s = pull_one(p);
    }
    if (s == LT_OK && there == p->parts)
        s = p->parts == 1 ? fail(p, LT_E_INVALID, "%s is there already; remove it or give --output", p->out)
                          : fail(p, LT_E_INVALID, "all %u parts are there already, the last is %s", there, p->out);
    return s;
}

int cmd_pull(const opts *o)
{
    pull p = {.parts = 1, .done = json_array()};
    if (app_open(&p.a, o) != LT_OK)
        return app_fail(&p.a);
    app_catch_interrupt(&p.a);
    lt_status s = LT_OK;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(p.curl = curl_easy_init()))
        s = fail(&p, LT_E_HOST_OOM, "libcurl could not be started");
    if (s == LT_OK)
        s = work(&p);
    int code = s == LT_OK ? 0 : app_fail(&p.a);
    if (s == LT_OK && o->v[OPT_json].set)
        app_print_json(p.parts == 1 ? json_incref(json_array_get(p.done, 0)) : json_pack("{s:O}", "parts", p.done));
    json_decref(p.done);
    curl_easy_cleanup(p.curl);
    curl_global_cleanup();
    app_close(&p.a);
    return code;
}
