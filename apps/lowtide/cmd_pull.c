/* cmd_pull.c - downloads a model: one file, or all that belong to it, whichever is named.
 *
 * Of several files all are asked about first, so that one that is missing there costs no download. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch.h"

#define HUB "https://huggingface.co"
#define INDEX ".safetensors.index.json"
#define MOST_SHARDS 9999

typedef struct pull {
    app         a;
    fetch       f;
    const char *kind;    /* "part" or "file" of several */
    char        base[512], url[2048], folder[768]; /* the file named, its address; "": no folder is made */
    bool        raw;     /* `base` is a piece of a URL, escaped already */
    fetch_file *files;
    size_t      n, cap;
    json_t     *done;
} pull;

/* --- names ---------------------------------------------------------------------------- */

#define SPLIT_TAIL 20 /* -00001-of-00002.gguf */

/* The "-00001-of-00002.gguf" at the end of a name; NULL: it is not one of several. Digits alone: %u would take a sign. */
static char *split_tail(char *name, unsigned *no, unsigned *count)
{
    size_t n = strlen(name);
    int used = 0;
    char a[6], b[6];
    if (n < SPLIT_TAIL || sscanf(name + n - SPLIT_TAIL, "-%5[0-9]-of-%5[0-9].gguf%n", a, b, &used) != 2 || used != SPLIT_TAIL)
        return NULL;
    *no = (unsigned)strtoul(a, NULL, 10);
    *count = (unsigned)strtoul(b, NULL, 10);
    return *no >= 1 && *no <= *count ? name + n - SPLIT_TAIL : NULL;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcasecmp(s + n - m, tail) == 0;
}

/* One path component of its own folder, that a terminal shows as it is. */
static bool is_plain(const char *name)
{
    for (const char *c = name; *c; c++)
        if (*c == '/' || iscntrl((unsigned char)*c))
            return false;
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* "scheme://" at its beginning, not in a query. */
static bool is_url(const char *s)
{
    const char *host = strstr(s, "://");
    return host && host > s && !memchr(s, '/', (size_t)(host - s)) && !memchr(s, '?', (size_t)(host - s)) && !memchr(s, '#', (size_t)(host - s));
}

/* A file's name may hold any character; an address may not. `to` has room for three bytes each. */
static void escape(char *to, const char *path)
{
    for (; *path; path++)
        if (isalnum((unsigned char)*path) || strchr("/-._~", *path))
            *to++ = *path;
        else
            to += sprintf(to, "%%%02X", (unsigned char)*path);
    *to = 0;
}

/* --- the list of files ---------------------------------------------------------------- */

/* `name` beside the file that p->url names; raw: it needs no escapes. */
static lt_status add_file(pull *p, const char *name, bool raw, bool optional)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 16;
        fetch_file *more = realloc(p->files, cap * sizeof *more);
        if (!more)
            return fetch_fail(&p->f, LT_E_HOST_OOM, "no memory for a list of %zu files", cap);
        p->files = more;
        p->cap = cap;
    }
    fetch_file *f = &p->files[p->n];
    size_t end = strcspn(p->url, "?#"), dir = end;
    while (dir && p->url[dir - 1] != '/')
        dir--;
    const char *out = p->a.o->v[OPT_output].s;
    *f = (fetch_file){.size = -1, .optional = optional, .url = malloc(strlen(p->url) + 3 * strlen(name) + 1)};
    f->out = malloc(strlen(p->folder) + strlen(name) + (out ? strlen(out) : 0) + 2);
    if (!f->url || !f->out) {
        free(f->url);
        free(f->out);
        return fetch_fail(&p->f, LT_E_HOST_OOM, "no memory for the name of a file");
    }
    p->n++;
    if (strcmp(name, p->base) == 0) { /* as it was given */
        strcpy(f->url, p->url);
    } else {
        memcpy(f->url, p->url, dir);
        if (raw)
            strcpy(f->url + dir, name);
        else
            escape(f->url + dir, name);
        strcat(f->url, p->url + end);
    }
    if (p->folder[0])
        sprintf(f->out, "%s/%s", p->folder, name);
    else
        strcpy(f->out, out ? out : name);
    f->there = access(f->out, F_OK) == 0;
    return LT_OK;
}

static lt_status refuse_one_file_options(pull *p, const char *what)
{
    const opts *o = p->a.o;
    bool output = o->v[OPT_output].set && !p->folder[0];
    if (output || o->v[OPT_sha256].set)
        return fetch_fail(&p->f, LT_E_INVALID, "--%s is for one file, '%s' is %s: all are pulled, under their own names", output ? "output" : "sha256",
                          p->base, what);
    return LT_OK;
}

static lt_status add_parts(pull *p, unsigned count)
{
    char what[48], name[sizeof p->base];
    unsigned no, same;
    snprintf(what, sizeof what, "one of %u parts", count);
    lt_status s = refuse_one_file_options(p, what);
    p->kind = "part";
    for (unsigned i = 1; s == LT_OK && i <= count; i++) {
        char digits[6];
        snprintf(name, sizeof name, "%s", p->base);
        snprintf(digits, sizeof digits, "%05u", i % 100000);
        memcpy(split_tail(name, &no, &same) + 1, digits, 5);
        s = add_file(p, name, p->raw, false);
    }
    return s;
}

/* The shards that the index on the server names, each once. */
static lt_status add_shards(pull *p)
{
    char *text;
    size_t bytes;
    lt_status s = fetch_text(&p->f, p->url, &text, &bytes);
    if (s != LT_OK)
        return s;
    json_t *j = json_loadb(text, bytes, 0, NULL), *map = json_object_get(j, "weight_map"), *seen = json_object(), *v;
    const char *key;
    free(text);
    if (!json_is_object(map) || !json_object_size(map))
        s = fetch_fail(&p->f, LT_E_FORMAT, "%s: not an index: it has no weight_map with the names of files", p->url);
    json_object_foreach(map, key, v) {
        const char *name = json_string_value(v);
        if (s != LT_OK)
            break;
        if (!name || !is_plain(name) || strlen(name) >= 256 || !ends_with(name, ".safetensors"))
            s = fetch_fail(&p->f, LT_E_FORMAT, "%s: %.60s lies in '%.80s', which is no .safetensors file beside the index", p->url, key, name ? name : "");
        else if (json_object_get(seen, name))
            continue;
        else if (json_object_size(seen) == MOST_SHARDS)
            s = fetch_fail(&p->f, LT_E_FORMAT, "%s: it names more than %d files", p->url, MOST_SHARDS);
        else if (json_object_set_new(seen, name, json_true()) != 0)
            s = fetch_fail(&p->f, LT_E_HOST_OOM, "no memory for the names of the files");
        else
            s = add_file(p, name, false, false);
    }
    json_decref(j);
    json_decref(seen);
    return s;
}

/* Where the files of a repository go: several of them are called the same in each. */
static lt_status choose_folder(pull *p, const char *repo)
{
    const char *given = p->a.o->v[OPT_output].s;
    char address[sizeof p->url];
    const char *name = given ? given : repo;
    if (!name) { /* https://hub/OWNER/REPO/resolve/main/FILE, or the folder it lies in */
        snprintf(address, sizeof address, "%.*s", (int)strcspn(p->url, "?#"), p->url);
        char *end = strstr(address, "/resolve/"), *host = strstr(address, "://") + 3, *from;
        *(end ? end : strrchr(address, '/')) = 0;
        from = strrchr(host, '/');
        name = from ? from + 1 : "";
    }
    if (!*name || (!given && !is_plain(name)))
        return fetch_fail(&p->f, LT_E_INVALID, "'%s' names no folder for the files; give --output FOLDER", p->a.o->arg);
    if (strlen(name) >= sizeof p->folder)
        return fetch_fail(&p->f, LT_E_INVALID, "--output: a folder's path of less than %zu characters was expected", sizeof p->folder);
    snprintf(p->folder, sizeof p->folder, "%s", name);
    return LT_OK;
}

/* A Hugging Face folder: what lt_modelfile_open reads of one. Last comes the file that makes it whole. */
static lt_status add_repository(pull *p, const char *repo)
{
    static const char *const others[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    lt_status s = choose_folder(p, repo);
    if (s == LT_OK)
        s = refuse_one_file_options(p, "one file of several");
    p->kind = "file";
    for (size_t i = 0; s == LT_OK && i < sizeof others / sizeof *others; i++)
        s = add_file(p, others[i], false, true);
    if (s == LT_OK && ends_with(p->base, INDEX))
        s = add_shards(p);
    return s == LT_OK ? add_file(p, p->base, p->raw, false) : s;
}

/* OWNER/REPO alone: its only .gguf model, else its safetensors, else a list to choose from. */
static lt_status choose_file(pull *p, const char *hub, const char *repo, char *file, size_t bytes)
{
    char url[2048], names[400] = "", *text;
    size_t n, i, found = 0, safetensors = 0;
    snprintf(url, sizeof url, "%s/api/models/%s", hub, repo);
    lt_status s = fetch_text(&p->f, url, &text, &n);
    if (s != LT_OK)
        return s;
    json_t *j = json_loadb(text, n, 0, NULL), *sib;
    free(text);
    json_array_foreach(json_object_get(j, "siblings"), i, sib) {
        const char *name = json_string_value(json_object_get(sib, "rfilename"));
        char kept[512];
        unsigned no = 1, count;
        if (!name)
            continue;
        if (strcmp(name, "model" INDEX) == 0)
            safetensors = 2;
        else if (strcmp(name, "model.safetensors") == 0 && !safetensors)
            safetensors = 1;
        if (!ends_with(name, ".gguf"))
            continue;
        if (strlen(name) >= bytes || strlen(name) >= sizeof kept)
            return json_decref(j), fetch_fail(&p->f, LT_E_FORMAT, "%s: a file's name of %zu characters is too long", repo, strlen(name));
        if (!is_plain(strrchr(name, '/') ? strrchr(name, '/') + 1 : name))
            return json_decref(j), fetch_fail(&p->f, LT_E_FORMAT, "%s: file %zu of its list has control characters in its name", repo, i + 1);
        snprintf(kept, sizeof kept, "%s", name);
        if (split_tail(kept, &no, &count) && no != 1)
            continue; /* comes with the first */
        snprintf(file, bytes, "%s", name);
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", found ? ", " : "", name);
        found++;
    }
    json_decref(j);
    if (found > 1)
        return fetch_fail(&p->f, LT_E_INVALID, "%s has %zu .gguf files; name one: %s", repo, found, names);
    if (!found && !safetensors)
        return fetch_fail(&p->f, LT_E_NOT_FOUND, "%s has no .gguf file and no model.safetensors, or is no repository of the hub", repo);
    if (!found)
        snprintf(file, bytes, "model%s", safetensors == 2 ? INDEX : ".safetensors");
    return LT_OK;
}

/* Fills url, base and the list from URL, OWNER/REPO/FILE or OWNER/REPO. */
static lt_status find_files(pull *p)
{
    const opts *o = p->a.o;
    const char *arg = o->arg, *hub = o->v[OPT_endpoint].set ? o->v[OPT_endpoint].s : HUB, *repo_name = NULL;
    char repo[512], file[512];
    bool whole_repository = false;
    if (is_url(arg)) {
        if (snprintf(p->url, sizeof p->url, "%s", arg) >= (int)sizeof p->url)
            return fetch_fail(&p->f, LT_E_INVALID, "the URL is too long");
        int end = (int)strcspn(arg, "?#");
        p->raw = true;
        while (end && arg[end - 1] != '/')
            end--;
        if (snprintf(file, sizeof file, "%.*s", (int)strcspn(arg + end, "?#"), arg + end) >= (int)sizeof file)
            return fetch_fail(&p->f, LT_E_INVALID, "the name of the URL's file is too long");
    } else {
        const char *first = strchr(arg, '/'), *second = first ? strchr(first + 1, '/') : NULL;
        if (!first || first == arg || !first[1] || strlen(arg) >= sizeof repo)
            return fetch_fail(&p->f, LT_E_INVALID, "'%s': expected OWNER/REPO, OWNER/REPO/FILE or a URL", arg);
        snprintf(repo, sizeof repo, "%.*s", second ? (int)(second - arg) : (int)strlen(arg), arg);
        snprintf(file, sizeof file, "%s", second ? second + 1 : "");
        repo_name = strchr(repo, '/') + 1;
        whole_repository = !file[0];
        lt_status s = file[0] ? LT_OK : choose_file(p, hub, repo, file, sizeof file);
        if (s != LT_OK)
            return s;
        if ((size_t)snprintf(p->url, sizeof p->url, "%s/%s/resolve/main/", hub, repo) >= sizeof p->url - 3 * sizeof file)
            return fetch_fail(&p->f, LT_E_INVALID, "the URL is too long");
        escape(p->url + strlen(p->url), file);
    }
    snprintf(p->base, sizeof p->base, "%s", strrchr(file, '/') ? strrchr(file, '/') + 1 : file);
    unsigned no, count;
    if (split_tail(p->base, &no, &count) && count > 1)
        return add_parts(p, count);
    if (ends_with(p->base, INDEX) || (whole_repository && ends_with(p->base, ".safetensors")))
        return add_repository(p, repo_name);
    if (!o->v[OPT_output].set && !is_plain(p->base))
        return fetch_fail(&p->f, LT_E_INVALID, "'%s' names no file; give --output FILE", arg);
    return add_file(p, p->base, p->raw, false);
}

/* --- pulling them --------------------------------------------------------------------- */

static void set_label(pull *p, size_t i)
{
    p->f.label[0] = 0;
    if (p->n > 1)
        snprintf(p->f.label, sizeof p->f.label, "%s %zu of %zu", p->kind, i + 1, p->n);
}

static void drop_file(pull *p, size_t i)
{
    free(p->files[i].url);
    free(p->files[i].out);
    memmove(&p->files[i], &p->files[i + 1], (p->n - i - 1) * sizeof *p->files);
    p->n--;
}

/* Asks for every file that is not here yet; those that need not be there and are not leave the list. */
static lt_status look_at_all(pull *p)
{
    bool known = true;
    for (size_t i = 0; i < p->n;) {
        fetch_file *f = &p->files[i];
        lt_status s = LT_OK;
        set_label(p, i);
        if (!f->there)
            s = fetch_look(&p->f, f);
        if (s == LT_E_NOT_FOUND && f->optional) {
            drop_file(p, i);
            continue;
        }
        if (s == LT_E_NOT_FOUND && p->n > 1)
            return fetch_fail(&p->f, s, "%s: no such file there (404); nothing was pulled", f->url);
        if (s != LT_OK)
            return s;
        known = known && (f->there || (f->size >= 0 && f->size <= INT64_MAX - p->f.total));
        p->f.total += f->there || !known ? 0 : f->size;
        i++;
    }
    if (!known)
        p->f.total = 0;
    return LT_OK;
}

static lt_status pull_one(pull *p, fetch_file *f)
{
    const opts *o = p->a.o;
    char hex[FETCH_HASH_HEX + 1] = "";
    lt_status s = fetch_get(&p->f, f, o->v[OPT_sha256].set ? o->v[OPT_sha256].s : NULL, hex);
    if (s != LT_OK)
        return s;
    p->f.before += f->size;
    json_array_append_new(p->done, json_pack("{s:o, s:s, s:s}", "file", app_string(f->out), "url", f->url, "sha256", hex));
    if (!o->v[OPT_json].set) {
        printf("%s  %s\n", hex, f->out);
        fflush(stdout);
    }
    return LT_OK;
}

static lt_status work(pull *p)
{
    const opts *o = p->a.o;
    if (o->v[OPT_sha256].set && !fetch_is_sha256(o->v[OPT_sha256].s))
        return fetch_fail(&p->f, LT_E_INVALID, "--sha256 %s: expected 64 hexadecimal digits", o->v[OPT_sha256].s);
    lt_status s = find_files(p);
    if (s == LT_OK)
        s = look_at_all(p);
    if (s == LT_OK && p->folder[0] && mkdir(p->folder, 0777) != 0 && errno != EEXIST)
        s = fetch_fail(&p->f, LT_E_IO, "the folder %s cannot be made: %s", p->folder, strerror(errno));
    size_t pulled = 0;
    for (size_t i = 0; s == LT_OK && i < p->n; i++) {
        set_label(p, i);
        if (access(p->files[i].out, F_OK) == 0)
            continue;
        s = pull_one(p, &p->files[i]);
        pulled++;
    }
    if (s != LT_OK || pulled)
        return s;
    p->f.label[0] = 0;
    return p->n == 1 ? fetch_fail(&p->f, LT_E_INVALID, "%s is there already; remove it or give --output", p->files[0].out)
                     : fetch_fail(&p->f, LT_E_INVALID, "all %zu %ss are there already, the last is %s", p->n, p->kind, p->files[p->n - 1].out);
}

int cmd_pull(const opts *o)
{
    pull p = {.done = json_array()};
    if (app_open(&p.a, o) != LT_OK)
        return app_fail(&p.a);
    app_catch_interrupt(&p.a);
    lt_status s = fetch_open(&p.f, &p.a);
    if (s == LT_OK)
        s = work(&p);
    int code = s == LT_OK ? 0 : app_fail(&p.a);
    if (s == LT_OK && o->v[OPT_json].set)
        app_print_json(p.n == 1 ? json_incref(json_array_get(p.done, 0)) : json_pack("{s:O}", p.folder[0] ? "files" : "parts", p.done));
    json_decref(p.done);
    while (p.n)
        drop_file(&p, p.n - 1);
    free(p.files);
    fetch_close(&p.f);
    app_close(&p.a);
    return code;
}
