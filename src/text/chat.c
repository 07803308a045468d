/* chat.c - the families' turns, written as their templates write them. */
#include "text/chat.h"

#include "base/mem.h"
#include "text/text.h"

typedef struct page {
    lt_ctx *ctx;
    char *v;
    size_t n, cap;
    lt_status status;
    lt_err *err;
} page;

static void put_n(page *p, const char *s, size_t n)
{
    if (p->status == LT_OK)
        p->status = lt__grow(p->ctx, (void **)&p->v, &p->cap, p->n + n + 1, 1, p->err);
    if (p->status != LT_OK)
        return;
    memcpy(p->v + p->n, s, n);
    p->n += n;
}

static void put(page *p, const char *s) { put_n(p, s, strlen(s)); }

/* What Python's str.strip takes for white space: more than the property of that name. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static size_t trim(const char **text)
{
    const char *s = *text, *end = s + strlen(s), *last;
    uint32_t cp;
    for (size_t k; s < end && (k = lt__utf8_next(s, (size_t)(end - s), &cp)) > 0 && is_space(cp); s += k)
        ;
    last = s;
    for (const char *p = s; p < end;) {
        size_t k = lt__utf8_next(p, (size_t)(end - p), &cp);
        if (k == 0) {
            k = 1;
            cp = 0xfffd;
        }
        p += k;
        if (!is_space(cp))
            last = p;
    }
    *text = s;
    return (size_t)(last - s);
}

static void put_trimmed(page *p, const char *s)
{
    size_t n = trim(&s);
    put_n(p, s, n);
}

typedef struct talk {
    const lt_chat_message *m;
    size_t n;
    const char *system; /* NULL: none; then m and n are without it */
    bool open;
} talk;

static bool is_role(const lt_chat_message *m, const char *role) { return strcmp(m->role, role) == 0; }

static void chatml_turn(page *p, const char *role, const char *content)
{
    put(p, "<|im_start|>");
    put(p, role);
    put(p, "\n");
    put(p, content);
    put(p, "<|im_end|>\n");
}

static void chatml(page *p, const talk *t, const char *default_system)
{
    if (t->system != NULL || default_system != NULL)
        chatml_turn(p, "system", t->system != NULL ? t->system : default_system);
    for (size_t i = 0; i < t->n; i++)
        chatml_turn(p, t->m[i].role, t->m[i].content);
    if (t->open)
        put(p, "<|im_start|>assistant\n");
}

static const char *skip_newlines(const char *s)
{
    while (*s == '\n')
        s++;
    return s;
}

/* The last thought before `end`, without the newlines around it. */
static void put_thought(page *p, const char *content, const char *end)
{
    const char *from = content;
    for (const char *s = content; (s = strstr(s, "<think>")) != NULL && s < end; s += 7)
        from = s + 7;
    while (end > from && end[-1] == '\n')
        end--;
    while (from < end && *from == '\n')
        from++;
    put_n(p, from, (size_t)(end - from));
}

static void qwen3(page *p, const talk *t)
{
    size_t last_query = t->n;
    for (size_t i = 0; i < t->n; i++) {
        size_t n = strlen(t->m[i].content);
        bool tool = n >= 31 && strncmp(t->m[i].content, "<tool_response>", 15) == 0 &&
                    strcmp(t->m[i].content + n - 16, "</tool_response>") == 0;
        if (is_role(&t->m[i], "user") && !tool)
            last_query = i;
    }
    if (t->system != NULL)
        chatml_turn(p, "system", t->system);
    for (size_t i = 0; i < t->n; i++) {
        const char *content = t->m[i].content, *answer = content, *first = strstr(content, "</think>");
        if (is_role(&t->m[i], "user")) {
            chatml_turn(p, "user", content);
            continue;
        }
        for (const char *s = first; s != NULL; s = strstr(answer, "</think>"))
            answer = s + 8;
        if (first != NULL)
            answer = skip_newlines(answer);
        put(p, "<|im_start|>assistant\n");
        if (last_query < t->n && i > last_query && i + 1 == t->n) {
            put(p, "<think>\n");
            if (first != NULL)
                put_thought(p, content, first);
            put(p, "\n</think>\n\n");
            answer = skip_newlines(answer);
        }
        put(p, answer);
        put(p, "<|im_end|>\n");
    }
    if (t->open)
        put(p, "<|im_start|>assistant\n");
}

static void llama3_head(page *p, const char *role)
{
    put(p, "<|start_header_id|>");
    put(p, role);
    put(p, "<|end_header_id|>\n\n");
}

static void llama3(page *p, const talk *t, bool dated)
{
    if (t->system != NULL || dated) {
        llama3_head(p, "system");
        /* The vendor's own constants: what its template says where nothing gives it the day. */
        if (dated)
            put(p, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        if (t->system != NULL)
            put_trimmed(p, t->system);
        put(p, "<|eot_id|>");
    }
    for (size_t i = 0; i < t->n; i++) {
        llama3_head(p, t->m[i].role);
        put_trimmed(p, t->m[i].content);
        put(p, "<|eot_id|>");
    }
    if (t->open)
        llama3_head(p, "assistant");
}

static void llama2(page *p, const talk *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (i % 2 == 1) {
            put(p, " ");
            put_trimmed(p, t->m[i].content);
            put(p, " </s>");
            continue;
        }
        put(p, i > 0 ? "<s>[INST] " : "[INST] ");
        if (i == 0 && t->system != NULL) {
            put(p, "<<SYS>>\n");
            put(p, t->system);
            put(p, "\n<</SYS>>\n\n");
            /* The whole is stripped, so its end is. */
            const char *s = t->m[i].content, *from = s;
            size_t n = trim(&from);
            put_n(p, s, n > 0 ? (size_t)(from - s) + n : 0);
            while (n == 0 && p->status == LT_OK && p->n > 0 && p->v[p->n - 1] == '\n')
                p->n--;
        } else {
            put_trimmed(p, t->m[i].content);
        }
        put(p, " [/INST]");
    }
}

/* `inner`: the space the first tokenizer has inside the brackets. The system message stands
 * before the first turn there, later before the last. */
static void mistral(page *p, const talk *t, bool v1, bool strip)
{
    for (size_t i = 0; i < t->n; i++) {
        if (i % 2 == 1) {
            put(p, v1 ? " " : "");
            if (strip)
                put_trimmed(p, t->m[i].content);
            else
                put(p, t->m[i].content);
            put(p, "</s>");
            continue;
        }
        put(p, v1 ? "[INST] " : "[INST]");
        if (t->system != NULL && (v1 ? i == 0 : i + 1 == t->n)) {
            put(p, t->system);
            put(p, "\n\n");
        }
        put(p, t->m[i].content);
        put(p, v1 ? " [/INST]" : "[/INST]");
    }
}

static void gemma(page *p, const talk *t)
{
    for (size_t i = 0; i < t->n; i++) {
        put(p, i % 2 == 0 ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
        if (i == 0 && t->system != NULL) {
            put(p, t->system);
            put(p, "\n\n");
        }
        put_trimmed(p, t->m[i].content);
        put(p, "<end_of_turn>\n");
    }
    if (t->open)
        put(p, "<start_of_turn>model\n");
}

static void phi(page *p, const talk *t, const char *gap)
{
    const lt_chat_message first = {"system", t->system};
    for (size_t i = 0; i < t->n + 1; i++) {
        const lt_chat_message *m = i == 0 ? &first : &t->m[i - 1];
        if (m->content == NULL || (i == 0 && m->content[0] == '\0'))
            continue;
        put(p, "<|");
        put(p, m->role);
        put(p, "|>");
        put(p, gap);
        put(p, m->content);
        put(p, "<|end|>");
        put(p, gap);
    }
    if (t->open) {
        put(p, "<|assistant|>");
        put(p, gap);
    }
}

static void harmony_turn(page *p, const char *role, const char *channel, const char *content, const char *end)
{
    put(p, "<|start|>");
    put(p, role);
    if (channel != NULL) {
        put(p, "<|channel|>");
        put(p, channel);
    }
    put(p, "<|message|>");
    put(p, content);
    put(p, end);
}

/* What the caller calls the system message is the developer's here; the system's is the vendor's own. It tells today's date:
 * a constant, so that a prompt is the same tomorrow. */
static void harmony(page *p, const talk *t)
{
    harmony_turn(p, "system", NULL,
                 "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
                 "Current date: 2025-08-05\n\nReasoning: medium\n\n"
                 "# Valid channels: analysis, commentary, final. Channel must be included for every message.",
                 "<|end|>");
    if (t->system != NULL && t->system[0] != '\0') {
        harmony_turn(p, "developer", NULL, "# Instructions\n\n", t->system);
        put(p, "\n\n<|end|>");
    }
    for (size_t i = 0; i < t->n; i++) {
        bool answer = i % 2 == 1, last = i + 1 == t->n && !t->open;
        harmony_turn(p, t->m[i].role, answer ? "final" : NULL, t->m[i].content, answer && last ? "<|return|>" : "<|end|>");
    }
    if (t->open)
        put(p, "<|start|>assistant");
}

static lt_status check_talk(lt_chat_template t, const lt_chat_message *m, size_t n, talk *out, lt_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (m[i].role == NULL || m[i].content == NULL)
            return lt__fail(err, LT_E_INVALID, "message %zu has no role or no content", i);
    out->system = n > 0 && is_role(&m[0], "system") ? m[0].content : NULL;
    size_t skip = out->system != NULL;
    out->m = n > 0 ? m + skip : m;
    out->n = n - skip;
    for (size_t i = 0; i < out->n; i++) {
        const char *want = i % 2 == 0 ? "user" : "assistant";
        if (!is_role(&out->m[i], want))
            return lt__fail(err, LT_E_INVALID, "message %zu has the role \"%.32s\", expected \"%s\": after an optional system message user and assistant take turns (template %s)",
                            i + skip, out->m[i].role, want, lt_chat_name(t));
    }
    return LT_OK;
}

lt_status lt_chat_render(lt_ctx *ctx, lt_chat_template t, const lt_chat_message *m, size_t n, bool open,
                         char **text, size_t *bytes, lt_err *err)
{
    *text = NULL;
    *bytes = 0;
    page p = {.ctx = ctx, .err = err};
    talk k = {.open = open};
    if ((unsigned)t >= LT_CHAT_COUNT)
        return lt__fail(err, LT_E_INVALID, "chat template %d, expected 0 to %d", (int)t, LT_CHAT_COUNT - 1);
    lt_status s = check_talk(t, m, n, &k, err);
    if (s != LT_OK)
        return s;
    switch (t) {
    case LT_CHAT_CHATML: chatml(&p, &k, NULL); break;
    case LT_CHAT_SMOLLM2:
        chatml(&p, &k, "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
        break;
    case LT_CHAT_QWEN2: chatml(&p, &k, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."); break;
    case LT_CHAT_QWEN3: qwen3(&p, &k); break;
    case LT_CHAT_LLAMA2: llama2(&p, &k); break;
    case LT_CHAT_LLAMA3: llama3(&p, &k, false); break;
    case LT_CHAT_LLAMA31: llama3(&p, &k, true); break;
    case LT_CHAT_MISTRAL1: mistral(&p, &k, true, false); break;
    case LT_CHAT_MISTRAL: mistral(&p, &k, false, true); break;
    case LT_CHAT_TEKKEN: mistral(&p, &k, false, false); break;
    case LT_CHAT_GEMMA: gemma(&p, &k); break;
    case LT_CHAT_PHI3: phi(&p, &k, "\n"); break;
    case LT_CHAT_PHI4: phi(&p, &k, ""); break;
    case LT_CHAT_HARMONY: harmony(&p, &k); break;
    case LT_CHAT_COUNT: break;
    }
    char *exact = p.status == LT_OK ? lt__strndup(ctx, p.v != NULL ? p.v : "", p.n) : NULL;
    if (p.status == LT_OK && exact == NULL)
        p.status = lt__fail_oom(err, p.n + 1, "the rendered chat");
    lt__free(ctx, p.v, p.cap);
    *text = exact;
    *bytes = exact != NULL ? p.n : 0;
    return p.status;
}

void lt_chat_free(lt_ctx *ctx, char *text, size_t bytes)
{
    if (text != NULL)
        lt__free(ctx, text, bytes + 1);
}

const char *lt_chat_name(lt_chat_template t)
{
    static const char *const names[] = {
#define LT_X(name, text, who) text,
        LT_CHAT_LIST(LT_X)
#undef LT_X
    };
    return (unsigned)t < LT_CHAT_COUNT ? names[t] : "?";
}

bool lt_chat_by_name(const char *name, lt_chat_template *out)
{
    for (int i = 0; i < LT_CHAT_COUNT; i++)
        if (strcmp(lt_chat_name((lt_chat_template)i), name) == 0) {
            *out = (lt_chat_template)i;
            return true;
        }
    return false;
}
