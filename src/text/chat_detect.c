/* chat_detect.c - which family's template a file holds, by what the template does. */
#include "text/chat.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static uint64_t fnv(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Text between tags as Jinja leaves it with trim_blocks and lstrip_blocks, as the vendors' library
 * sets them. */
static uint64_t hash_text(uint64_t h, const char *s, size_t n, bool after_block, bool strip_left, bool strip_right,
                          bool before_block, bool line_start)
{
    if (after_block && !strip_left && n > 0 && s[0] == '\n') {
        s++;
        n--;
        line_start = true;
    }
    if (strip_left)
        for (; n > 0 && isspace((unsigned char)s[0]); s++, n--)
            ;
    if (strip_right) {
        for (; n > 0 && isspace((unsigned char)s[n - 1]); n--)
            ;
    } else if (before_block) {
        size_t k = n;
        while (k > 0 && (s[k - 1] == ' ' || s[k - 1] == '\t'))
            k--;
        if (k > 0 ? s[k - 1] == '\n' : line_start)
            n = k;
    }
    if (n == 0)
        return h;
    h = fnv(h, "T", 1);
    h = fnv(h, s, n);
    return fnv(h, "\0", 1);
}

static uint64_t hash_string(uint64_t h, const char **at, const char *end)
{
    const char *s = *at;
    char quote = *s++;
    h = fnv(h, "S", 1);
    for (; s < end && *s != quote; s++) {
        char c = *s;
        if (c == '\\' && s + 1 < end) {
            c = *++s;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        h = fnv(h, &c, 1);
    }
    *at = s < end ? s + 1 : end;
    return fnv(h, "\0", 1);
}

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Ends behind the tag's closing mark; *dash says whether it has one before it. */
static uint64_t hash_tag(uint64_t h, const char **at, const char *end, char close, bool *dash)
{
    const char *s = *at;
    *dash = false;
    while (s < end) {
        if (isspace((unsigned char)*s)) {
            s++;
        } else if (*s == '\'' || *s == '"') {
            h = hash_string(h, &s, end);
        } else if (is_word(*s)) {
            const char *from = s;
            while (s < end && is_word(*s))
                s++;
            h = fnv(h, "W", 1);
            h = fnv(h, from, (size_t)(s - from));
            h = fnv(h, "\0", 1);
        } else if (end - s >= 2 && s[0] == close && s[1] == '}') {
            s += 2;
            break;
        } else if (end - s >= 3 && s[0] == '-' && s[1] == close && s[2] == '}') {
            *dash = true;
            s += 3;
            break;
        } else {
            h = fnv(h, s++, 1);
        }
    }
    *at = s;
    return h;
}

uint64_t lt__chat_fingerprint(const char *text, size_t n)
{
    const char *at = text, *end = text + n;
    uint64_t h = 0xcbf29ce484222325u;
    bool after_block = false, strip_left = false, line_start = true;
    if (n > 0 && end[-1] == '\n')
        end--;
    while (at < end) {
        const char *tag = at;
        while (tag < end && !(tag[0] == '{' && end - tag >= 2 && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
            tag++;
        bool dash = end - tag >= 3 && tag[2] == '-', block = tag < end && tag[1] != '{';
        h = hash_text(h, at, (size_t)(tag - at), after_block, strip_left, dash, block, line_start);
        if (tag == end)
            break;
        at = tag + 2 + dash;
        if (tag[1] == '#') {
            const char *stop = at;
            while (stop < end && !(stop[0] == '#' && end - stop >= 2 && stop[1] == '}'))
                stop++;
            strip_left = stop > at && stop[-1] == '-';
            at = stop < end ? stop + 2 : end;
        } else {
            h = fnv(h, &tag[1], 1);
            h = hash_tag(h, &at, end, tag[1] == '{' ? '}' : '%', &strip_left);
        }
        after_block = block;
        line_start = false;
    }
    return h;
}

/* Fingerprints of published templates. tests/golden/make_chat_golden.py renders each by Jinja and
 * lists here only those whose text our own agrees with. */
static const struct { uint64_t print; lt_chat_template family; } known[] = {
#include "text/chat_known.inc"
};

bool lt__chat_known(const char *text, size_t n, lt_chat_template *out)
{
    uint64_t h = lt__chat_fingerprint(text, n);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].print == h) {
            *out = known[i].family;
            return true;
        }
    return false;
}

/* The family an unknown template most resembles, for the hint; by marks no other family has. */
static const char *looks_like(const char *text)
{
    static const struct { const char *mark; lt_chat_template t; } marks[] = {
        {"<|channel|>", LT_CHAT_HARMONY}, {"<start_of_turn>", LT_CHAT_GEMMA}, {"Cutting Knowledge Date", LT_CHAT_LLAMA31},
        {"<|start_header_id|>", LT_CHAT_LLAMA3}, {"You are Qwen", LT_CHAT_QWEN2}, {"named SmolLM", LT_CHAT_SMOLLM2},
        {"<|im_start|>", LT_CHAT_CHATML}, {"<<SYS>>", LT_CHAT_LLAMA2}, {"<|end|>", LT_CHAT_PHI3},
        {"[AVAILABLE_TOOLS][", LT_CHAT_TEKKEN}, {"[AVAILABLE_TOOLS]", LT_CHAT_MISTRAL}, {"[INST]", LT_CHAT_MISTRAL1}};
    if (strstr(text, "<|im_start|>") != NULL && strstr(text, "<think>") != NULL)
        return lt_chat_name(LT_CHAT_QWEN3);
    if (strstr(text, "<|im_sep|>") != NULL)
        return NULL;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(text, marks[i].mark) != NULL)
            return lt_chat_name(marks[i].t);
    return NULL;
}

static const char *list_names(char *buf, size_t n)
{
    size_t o = 0;
    for (int i = 0; i < LT_CHAT_COUNT && o < n; i++)
        o += (size_t)snprintf(buf + o, n - o, "%s%s", i > 0 ? ", " : "", lt_chat_name((lt_chat_template)i));
    return buf;
}

lt_status lt_chat_detect(const lt_modelfile *f, lt_chat_template *out, lt_err *err)
{
    const char *file = lt_modelfile_part_path(f, 0);
    const lt_key *k = lt_modelfile_key(f, "tokenizer.chat_template");
    char names[160];
    if (k == NULL)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: the file holds no chat template (key tokenizer.chat_template); choose one with --chat-template: %s",
                        file, list_names(names, sizeof names));
    if (k->type != LT_KEY_STRING)
        return lt__fail(err, LT_E_FORMAT, "%s: key tokenizer.chat_template is not a string", file);
    if (lt__chat_known(k->v.s[0], k->s_len[0], out))
        return LT_OK;
    const char *like = looks_like(k->v.s[0]);
    return lt__fail(err, LT_E_UNSUPPORTED, "%s: its chat template is none of those known%s%s%s; choose one with --chat-template: %s",
                    file, like != NULL ? " (it resembles " : "", like != NULL ? like : "", like != NULL ? ")" : "",
                    list_names(names, sizeof names));
}
