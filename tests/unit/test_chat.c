/* Chat templates: names, turns, detection from a file, faults. Their exact text: golden/test_chat_vendor.py. */
#include "text/chat.h"

#include "base/mem.h"
#include "format/gguf_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "text_common.h"

static lt_ctx *ctx;

static const char *render(lt_chat_template t, const lt_chat_message *m, size_t n, bool open)
{
    static char out[2048];
    char *text;
    size_t bytes;
    lt_err err = {0};
    if (lt_chat_render(ctx, t, m, n, open, &text, &bytes, &err) != LT_OK)
        fail_msg("%s", err.text);
    snprintf(out, sizeof out, "%s", text);
    assert_int_equal(strlen(text), bytes);
    lt_chat_free(ctx, text, bytes);
    return out;
}

static void names_go_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < LT_CHAT_COUNT; i++) {
        lt_chat_template t;
        assert_true(lt_chat_by_name(lt_chat_name((lt_chat_template)i), &t));
        assert_int_equal(t, i);
    }
    lt_chat_template t;
    assert_false(lt_chat_by_name("vicuna", &t));
    assert_string_equal(lt_chat_name(LT_CHAT_COUNT), "?");
}

static void turns(void **state)
{
    (void)state;
    const lt_chat_message m[] = {{"system", "S"}, {"user", " U "}, {"assistant", "A"}, {"user", "V"}};
    assert_string_equal(render(LT_CHAT_GEMMA, m, 4, true),
                        "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
                        "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n");
    assert_string_equal(render(LT_CHAT_TEKKEN, m, 4, true), "[INST] U [/INST]A</s>[INST]S\n\nV[/INST]");
    assert_string_equal(render(LT_CHAT_MISTRAL1, m, 4, true), "[INST] S\n\n U  [/INST] A</s>[INST] V [/INST]");
    assert_string_equal(render(LT_CHAT_CHATML, m + 1, 1, false), "<|im_start|>user\n U <|im_end|>\n");
    assert_string_equal(render(LT_CHAT_PHI4, m, 2, true), "<|system|>S<|end|><|user|> U <|end|><|assistant|>");
    assert_string_equal(render(LT_CHAT_CHATML, NULL, 0, true), "<|im_start|>assistant\n");
    const lt_chat_message thought[] = {{"user", "U"}, {"assistant", "<think>\nx\n</think>\n\nA"}, {"user", "V"}};
    assert_string_equal(render(LT_CHAT_QWEN3, thought, 3, true),
                        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n");
}

static void harmony_turns(void **state)
{
    (void)state;
    const lt_chat_message m[] = {{"system", "S"}, {"user", " U "}, {"assistant", "A"}, {"user", "V"}};
    const char *open = render(LT_CHAT_HARMONY, m, 4, true), *rest = strstr(open, "every message.<|end|>");
    assert_memory_equal(open, "<|start|>system<|message|>You are ChatGPT,", 42);
    assert_string_equal(rest + 21, "<|start|>developer<|message|># Instructions\n\nS\n\n<|end|><|start|>user<|message|> U <|end|>"
                                   "<|start|>assistant<|channel|>final<|message|>A<|end|><|start|>user<|message|>V<|end|><|start|>assistant");
    const char *closed = render(LT_CHAT_HARMONY, m + 1, 2, false);
    assert_string_equal(strstr(closed, "every message.") + 14,
                        "<|end|><|start|>user<|message|> U <|end|><|start|>assistant<|channel|>final<|message|>A<|return|>");
}

/* Ids of the pieces of `text`, which stand apart by spaces; then what of them is shown, and '.' where the answer is over. */
static const char *shown(lt_chat_template t, const lt_tokenizer *tk, const char *text)
{
    static char out[256];
    char copy[256];
    lt_chat_reader r = {0};
    size_t n = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) {
        int32_t id = lt_tokenizer_find(tk, p);
        assert_true(id >= 0);
        lt_chat_part part = lt_tokenizer_ends(tk, id) ? LT_CHAT_OVER : lt_chat_read(&r, t, tk, id);
        if (part == LT_CHAT_OVER) {
            out[n++] = '.';
            break;
        }
        if (part == LT_CHAT_SHOWN)
            n += (size_t)snprintf(out + n, sizeof out - n, "%s", p);
    }
    out[n] = 0;
    return out;
}

static void harmony_answers(void **state)
{
    (void)state;
    static const char *const marks[] = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"},
                      *const words[] = {"assistant", "analysis", "final", "fin", "al", "comment", "ary"};
    toy *v = toy_bpe("gpt-4o");
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        toy_add(v, marks[i], i % 2 ? 3 : 4, 0); /* files have either kind */
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        toy_add(v, words[i], 1, 0);
    lt_tokenizer *tk;
    lt_err err;
    if (lt__tokenizer_build(ctx, &v->d, &tk, &err) != LT_OK)
        fail_msg("%s", err.text);
    static const struct { const char *answer, *want; } rows[] = {
        {"<|channel|> analysis <|message|> x x <|end|> <|start|> assistant <|channel|> final <|message|> y x <|return|>", "yx."},
        {"<|channel|> fin al <|message|> y <|end|> x", "y."},          /* some end the last message like the others */
        {"<|channel|> final x <|message|> y", ""},                     /* no such channel */
        {"<|channel|> final \xc4\xa0 <|constrain|> x <|message|> y x", "yx"}, /* what form it has stands behind the name */
        {"<|channel|> comment ary <|message|> x <|call|> y", "."},
        {"<|message|> x y <|return|>", "xy."},                         /* names no channel */
        {"<|channel|> analysis <|message|> x <|end|> x <|start|> assistant <|channel|> final", ""},
        {"<|channel|> analysis analysis analysis analysis <|message|> x", ""}, /* a name longer than any */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(shown(LT_CHAT_HARMONY, tk, rows[i].answer), rows[i].want);
    assert_string_equal(shown(LT_CHAT_CHATML, tk, "x <|channel|> y"), "x<|channel|>y");
    assert_false(lt_tokenizer_ends(tk, lt_tokenizer_find(tk, "<|end|>")));
    assert_true(lt_tokenizer_ends(tk, lt_tokenizer_find(tk, "<|return|>")));
    assert_true(lt_tokenizer_ends(tk, lt_tokenizer_find(tk, "<|call|>")));
    lt_tokenizer_destroy(tk);
    toy_free(v);

    v = toy_bpe("gpt-4o"); /* of another family, with harmony asked for */
    toy_add(v, "<|end|>", 3, 0);
    assert_int_equal(lt__tokenizer_build(ctx, &v->d, &tk, &err), LT_OK);
    assert_string_equal(shown(LT_CHAT_HARMONY, tk, "x y <|end|>"), "xy.");
    lt_tokenizer_destroy(tk);
    toy_free(v);
}

static void misplaced_roles_are_refused(void **state)
{
    (void)state;
    const lt_chat_message rows[][3] = {{{"assistant", "A"}}, {{"user", "U"}, {"user", "V"}}, {{"user", "U"}, {"system", "S"}},
                                       {{"system", "S"}, {"system", "S"}}, {{"tool", "T"}}, {{"user", NULL}}, {{NULL, "x"}}};
    const size_t n[] = {1, 2, 2, 2, 1, 1, 1};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        char *text = (char *)1;
        size_t bytes;
        lt_err err;
        assert_int_equal(lt_chat_render(ctx, LT_CHAT_CHATML, rows[i], n[i], true, &text, &bytes, &err), LT_E_INVALID);
        assert_null(text);
        assert_non_null(strstr(err.text, "message "));
    }
    lt_err err;
    char *text;
    size_t bytes;
    assert_int_equal(lt_chat_render(ctx, LT_CHAT_COUNT, rows[0], 0, true, &text, &bytes, &err), LT_E_INVALID);
}

static lt_status detect(const char *template, const char *path, lt_chat_template *t, lt_err *err)
{
    lt__gguf_writer *w;
    lt_modelfile *f;
    assert_int_equal(lt__gguf_writer_create(ctx, path, 32, &w, err), LT_OK);
    lt__gguf_put_str(w, "general.architecture", "llama");
    if (template != NULL)
        lt__gguf_put_str(w, "tokenizer.chat_template", template);
    else
        lt__gguf_put_u32(w, "llama.block_count", 1);
    assert_int_equal(lt__gguf_writer_commit(w, err), LT_OK);
    assert_int_equal(lt_modelfile_open(ctx, path, &f, err), LT_OK);
    lt_status s = lt_chat_detect(f, t, err);
    lt_modelfile_close(f);
    unlink(path);
    return s;
}

#define CHATML_LOOP "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
#define CHATML_OPEN "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

static void detection(void **state)
{
    (void)state;
    char path[] = "/tmp/lt_chat_XXXXXX";
    close(mkstemp(path));
    lt_chat_template t = LT_CHAT_COUNT;
    lt_err err;
    assert_int_equal(detect(CHATML_LOOP CHATML_OPEN, path, &t, &err), LT_OK);
    assert_int_equal(t, LT_CHAT_CHATML);
    /* What changes nothing does not count: quotes, spaces in tags, escapes, comments, a last newline. */
    assert_int_equal(detect("{#- hello #}{%for message in messages%}{{ \"<|im_start|>\" + message[\"role\"]+'\\n' + message['content'] + '<|im_end|>' + '\n' }}"
                            "{% endfor %}" CHATML_OPEN "\n", path, &t, &err), LT_OK);
    /* Anything else does: another word, order, filter, white space that is written. */
    static const char *const changed[] = {
        "Be brief. " CHATML_LOOP CHATML_OPEN,
        CHATML_LOOP "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}{{ eos_token }}",
        CHATML_LOOP " " CHATML_OPEN,
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']|trim + '<|im_end|>' + '\n'}}{% endfor %}" CHATML_OPEN,
        "{% for message in messages %}{{'<|im_start|>' + message['content'] + '\n' + message['role'] + '<|im_end|>' + '\n'}}{% endfor %}" CHATML_OPEN,
        "{% for message in messages %}{{ message['content'] }}{% endfor %}", "", "{{", "{% '", "{#",
        "<|start|>system<|message|><|end|>{{ '<|channel|>final' }}",
    };
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        assert_int_equal(detect(changed[i], path, &t, &err), LT_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "--chat-template"));
        assert_non_null(strstr(err.text, "tekken"));
        if (i < 5)
            assert_non_null(strstr(err.text, "resembles chatml"));
        if (i + 1 == sizeof changed / sizeof *changed)
            assert_non_null(strstr(err.text, "resembles harmony"));
    }
    assert_int_equal(detect(NULL, path, &t, &err), LT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "holds no chat template"));
}

static bool fail_nth(void *user, lt_fault_point point)
{
    int64_t *left = user;
    return point == LT_FAULT_HOST_ALLOC && *left >= 0 && (*left)-- == 0;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const lt_chat_message m[] = {{"system", "Some system message that is long enough to grow."}, {"user", " U "}, {"assistant", "A"}};
    int64_t left = -1;
    lt_ctx_desc cd = lt_ctx_desc_default();
    lt_ctx *c;
    cd.fault = fail_nth;
    cd.fault_user = &left;
    assert_int_equal(lt_ctx_create(&cd, &c, NULL), LT_OK);
    for (int t = 0; t < LT_CHAT_COUNT; t++)
        for (int64_t nth = 0;; nth++) {
            char *text;
            size_t bytes;
            lt_err err;
            left = nth;
            lt_status s = lt_chat_render(c, (lt_chat_template)t, m, 3, false, &text, &bytes, &err);
            bool fired = left < 0;
            left = -1;
            assert_int_equal(s, fired ? LT_E_HOST_OOM : LT_OK);
            lt_chat_free(c, text, bytes);
            assert_int_equal(lt_ctx_host_bytes(c), 0);
            if (!fired) {
                assert_true(nth >= 2);
                break;
            }
        }
    lt_ctx_destroy(c);
}

static int make(void **state)
{
    (void)state;
    return lt_ctx_create(NULL, &ctx, NULL);
}

static int unmake(void **state)
{
    (void)state;
    lt_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways), cmocka_unit_test(turns), cmocka_unit_test(harmony_turns),
        cmocka_unit_test(harmony_answers), cmocka_unit_test(misplaced_roles_are_refused),
        cmocka_unit_test(detection), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
