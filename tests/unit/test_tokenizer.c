/* Tokenizer: engines against naive ones, special pieces, decoding, hostile vocabularies, faults. */
#include "text_common.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static lt_ctx *ctx;

static lt_tokenizer *build(toy *v)
{
    lt_tokenizer *tk;
    lt_err err = {0};
    if (lt__tokenizer_build(ctx, &v->d, &tk, &err) != LT_OK)
        fail_msg("%s", err.text);
    toy_free(v);
    return tk;
}

static lt_tokens encode_n(const lt_tokenizer *tk, const char *text, size_t n, unsigned flags)
{
    lt_tokens ids = {0};
    lt_err err = {0};
    if (lt_tokenizer_encode(tk, text, n, flags, &ids, &err) != LT_OK)
        fail_msg("%s", err.text);
    return ids;
}

/* The pieces, with a bar between. */
static const char *pieces(const lt_tokenizer *tk, const char *text, unsigned flags)
{
    static char out[4096];
    lt_tokens ids = encode_n(tk, text, strlen(text), flags);
    size_t o = 0;
    for (size_t i = 0; i < ids.n; i++)
        o += (size_t)snprintf(out + o, sizeof out - o, "%s%s", i > 0 ? "|" : "", lt_tokenizer_piece(tk, ids.v[i], NULL, NULL));
    out[o] = '\0';
    lt_tokens_clear(&ids);
    return out;
}

static void assert_decodes(const lt_tokenizer *tk, const lt_tokens *ids, const char *text, size_t n)
{
    char *back;
    size_t bytes;
    lt_err err;
    assert_int_equal(lt_tokenizer_decode(tk, ids->v, ids->n, true, &back, &bytes, &err), LT_OK);
    assert_int_equal(bytes, n);
    assert_memory_equal(back, text, n);
    lt_tokenizer_free_text(tk, back, bytes);
}

static void random_text(uint64_t *seed, const char *alphabet, char *out, size_t n)
{
    size_t k = strlen(alphabet);
    for (size_t i = 0; i < n; i++)
        out[i] = alphabet[next_random(seed) % k];
    out[n] = '\0';
}

/* By definition: look at all pairs, merge the lowest rank, leftmost, again. */
static size_t naive_bpe(const lt_tokenizer *tk, const char *word, size_t n, uint32_t *id)
{
    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)tk->byte_id[(uint8_t)word[i]];
    for (;;) {
        const lt__merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const lt__merge *m = lt__merge_find(tk, id[i], id[i + 1]);
            if (m != NULL && (best == NULL || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (best == NULL)
            return n;
        id[at] = best->merged;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

static void bpe_is_the_naive_one(void **state)
{
    (void)state;
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 40; round++) {
        toy *v = toy_bpe("gpt-2");
        static const char *const letters[] = {"a", "b", "c"};
        for (int i = 0; i < 60; i++) {
            uint64_t a = next_random(&seed) % (v->d.n_tokens - 256 + 3), b = next_random(&seed) % (v->d.n_tokens - 256 + 3);
            const char *left = a < 3 ? letters[a] : v->tokens[256 + a - 3], *right = b < 3 ? letters[b] : v->tokens[256 + b - 3];
            if (strlen(left) + strlen(right) < 40)
                toy_learn(v, left, right);
        }
        lt_tokenizer *tk = build(v);
        for (int k = 0; k < 60; k++) {
            char text[300];
            uint32_t want[300];
            size_t n = 1 + next_random(&seed) % (k < 40 ? LT__BPE_SMALL + 2 : 290);
            random_text(&seed, "abc", text, n);
            size_t n_want = naive_bpe(tk, text, n, want);
            lt_tokens ids = encode_n(tk, text, n, LT_ENCODE_PLAIN);
            assert_int_equal(ids.n, n_want);
            assert_memory_equal(ids.v, want, n_want * sizeof *want);
            assert_decodes(tk, &ids, text, n);
            lt_tokens_clear(&ids);
        }
        lt_tokenizer_destroy(tk);
    }
}

typedef struct part { const char *s; size_t n; } part;

/* SentencePiece by definition, over the whole text at once, without word cuts; for pieces that are all usable. */
static size_t naive_spm(const lt_tokenizer *tk, const char *text, size_t n, part *p)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        size_t k = lt__utf8_next(text + i, n - i, &cp);
        p[count] = (part){text + i, k > 0 ? k : 1};
        i += p[count].n;
    }
    for (;;) {
        float best = 0;
        size_t at = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; i++) {
            int32_t id = lt__vocab_find(tk, p[i].s, p[i].n + p[i + 1].n);
            if (id >= 0 && tk->kind[id] != LT_TOKEN_NORMAL)
                id = -1;
            if (id >= 0 && (at == SIZE_MAX || tk->scores[id] > best)) {
                best = tk->scores[id];
                at = i;
            }
        }
        if (at == SIZE_MAX)
            return count;
        p[at].n += p[at + 1].n;
        memmove(p + at + 1, p + at + 2, (count - at - 2) * sizeof *p);
        count--;
    }
}

static void spm_is_the_naive_one(void **state)
{
    (void)state;
    uint64_t seed = 0x1234567890abcdefu;
    static const char *const atoms[] = {"a", "b", LT__METASPACE, "\xc3\xa9"};
    for (int round = 0; round < 40; round++) {
        toy *v = toy_spm(true);
        for (int i = 0; i < 80; i++) {
            char s[64] = "";
            for (uint32_t k = 0, n = 1 + next_random(&seed) % 5; k < n; k++)
                strcat(s, atoms[next_random(&seed) % (round % 2 ? 4 : 2)]);
            /* In even rounds U+2581 stands only in front: the engine may cut words. */
            char piece[80];
            snprintf(piece, sizeof piece, "%s%s", round % 2 == 0 && next_random(&seed) % 2 ? LT__METASPACE : "", s);
            bool known = false;
            for (uint64_t t = 0; t < v->d.n_tokens; t++)
                known |= strcmp(v->tokens[t], piece) == 0;
            if (!known)
                toy_add(v, piece, 1, -(double)(next_random(&seed) % 20));
        }
        v->d.add_space_prefix = 0;
        lt_tokenizer *tk = build(v);
        for (int k = 0; k < 60; k++) {
            char raw[120], text[400] = "";
            part want[400];
            size_t n = 1 + next_random(&seed) % 100, o = 0;
            random_text(&seed, "aabbb  c\xc3\xa9", raw, n);
            for (size_t i = 0; i < n; i++) {
                size_t m = raw[i] == ' ' ? 3 : 1;
                memcpy(text + o, raw[i] == ' ' ? LT__METASPACE : raw + i, m);
                o += m;
            }
            size_t n_want = naive_spm(tk, text, o, want), at = 0;
            lt_tokens ids = encode_n(tk, raw, n, LT_ENCODE_PLAIN);
            for (size_t i = 0; i < n_want; i++) {
                int32_t id = lt__vocab_find(tk, want[i].s, want[i].n);
                if (id >= 0 && tk->kind[id] == LT_TOKEN_NORMAL) {
                    assert_int_equal(ids.v[at++], id);
                    continue;
                }
                if (want[i].n == 3) {
                    assert_int_equal(ids.v[at++], tk->byte_id[' ']);
                    continue;
                }
                for (size_t b = 0; b < want[i].n; b++)
                    assert_int_equal(ids.v[at++], tk->byte_id[(uint8_t)want[i].s[b]]);
            }
            assert_int_equal(ids.n, at);
            assert_decodes(tk, &ids, raw, n);
            lt_tokens_clear(&ids);
        }
        lt_tokenizer_destroy(tk);
    }
}

static void unused_pieces_are_cut_back(void **state)
{
    (void)state;
    toy *v = toy_spm(true);
    toy_add(v, "a", 1, -9);
    toy_add(v, "b", 1, -9);
    toy_add(v, "c", 1, -9);
    toy_add(v, "ab", 5, -1);
    toy_add(v, "abc", 1, -2);
    toy_add(v, "bb", 5, -3);
    toy_add(v, "bbbb", 5, -4);
    v->d.add_space_prefix = 0;
    lt_tokenizer *tk = build(v);
    assert_string_equal(pieces(tk, "abc", 0), "abc");
    assert_string_equal(pieces(tk, "abd", 0), "a|b|<0x64>");
    assert_string_equal(pieces(tk, "bbbb", 0), "b|b|b|b");
    lt_tokenizer_destroy(tk);
}

static void unknown_runs_are_one(void **state)
{
    (void)state;
    toy *v = toy_spm(false);
    toy_add(v, LT__METASPACE, 1, -1);
    toy_add(v, "a", 1, -1);
    lt_tokenizer *tk = build(v);
    assert_string_equal(pieces(tk, "axyz bxa", 0), LT__METASPACE "|a|<unk>|" LT__METASPACE "|<unk>|a");
    lt_tokenizer_destroy(tk);
}

static void special_pieces_come_first(void **state)
{
    (void)state;
    toy *v = toy_bpe("gpt-2");
    toy_add(v, "<|a|>", 3, 0);
    toy_add(v, "<|a|>b", 3, 0);
    toy_add(v, "<u>", 4, 0);
    toy_add(v, "<u><u>", 4, 0);
    lt_tokenizer *tk = build(v);
    assert_string_equal(pieces(tk, "x<|a|>bc<u>y", LT_ENCODE_SPECIAL), "x|<|a|>b|c|<u>|y");
    assert_string_equal(pieces(tk, "<|a|>", LT_ENCODE_PLAIN), "<|||a|||>");
    assert_string_equal(pieces(tk, "<u><u><u>", LT_ENCODE_PLAIN), "<u><u>|<u>");
    assert_string_equal(pieces(tk, "<|a|", LT_ENCODE_SPECIAL), "<|||a||");
    lt_tokenizer_destroy(tk);
}

static toy *spaced(void)
{
    toy *v = toy_spm(true);
    toy_add(v, LT__METASPACE, 1, -3);
    toy_add(v, "x", 1, -3);
    toy_add(v, LT__METASPACE "x", 1, -2);
    toy_add(v, "  ", 4, 0);
    toy_add(v, "<t>", 4, 0);
    toy_add(v, "<|end|>", 3, 0);
    toy_add(v, "<|endoftext|>", 3, 0);
    return v;
}

static void spm_prefix_and_spaces(void **state)
{
    (void)state;
    lt_tokenizer *tk = build(spaced());
    assert_string_equal(pieces(tk, "x", 0), LT__METASPACE "x");
    assert_string_equal(pieces(tk, "x<t>x", 0), LT__METASPACE "x|<t>|" LT__METASPACE "x");
    /* A piece spelled with spaces is found, U+2581 in the text is a space. */
    assert_string_equal(pieces(tk, "x  x", 0), LT__METASPACE "x|  |" LT__METASPACE "x");
    assert_string_equal(pieces(tk, "x" LT__METASPACE "x", 0), LT__METASPACE "x|" LT__METASPACE "x");
    assert_string_equal(pieces(tk, "x", LT_ENCODE_BOS), "<s>|" LT__METASPACE "x");
    assert_string_equal(pieces(tk, "", LT_ENCODE_BOS), "<s>");
    assert_string_equal(pieces(tk, "", 0), "");
    static const char *const trips[] = {" x", "x", "  ", "x<t> x", "<|end|>x x</s> ", " x "};
    for (size_t i = 0; i < sizeof trips / sizeof *trips; i++) {
        lt_tokens ids = encode_n(tk, trips[i], strlen(trips[i]), LT_ENCODE_SPECIAL);
        assert_decodes(tk, &ids, trips[i], strlen(trips[i]));
        lt_tokens_clear(&ids);
    }
    lt_tokenizer_destroy(tk);
    toy *v = spaced();
    toy_add(v, "<a" LT__METASPACE "b>", 3, 0); /* found by the fuzzer: spelled with U+2581, written with a space */
    tk = build(v);
    lt_tokens ids = encode_n(tk, "<a b>", 5, LT_ENCODE_SPECIAL);
    assert_int_equal(ids.n, 1);
    assert_decodes(tk, &ids, "<a b>", 5);
    lt_tokens_clear(&ids);
    lt_tokenizer_destroy(tk);
    v = spaced();
    v->d.add_space_prefix = 0;
    v->d.add_bos = 0;
    v->d.add_eos = 1;
    tk = build(v);
    assert_string_equal(pieces(tk, "x<t>x", LT_ENCODE_BOS), "x|<t>|x|</s>");
    lt_tokenizer_destroy(tk);
}

static void phi3_swallows_space_behind_its_tokens(void **state)
{
    (void)state;
    toy *v = spaced();
    v->d.arch = "phi3";
    lt_tokenizer *tk = build(v);
    assert_string_equal(pieces(tk, "<|end|>\n \tx", LT_ENCODE_SPECIAL), "<|end|>|" LT__METASPACE "x");
    assert_string_equal(pieces(tk, "<|endoftext|> x", LT_ENCODE_SPECIAL), "<|endoftext|>|" LT__METASPACE "|" LT__METASPACE "x");
    lt_tokenizer_destroy(tk);
}

/* Names of split rules, a text, its words. With no merges the words show through `whole` pieces, so
 * here the rule itself is asked. */
typedef struct words { char out[512]; size_t n; } words;
static lt_status note_word(void *user, const char *word, size_t n, lt_err *err)
{
    (void)err;
    words *w = user;
    w->n += (size_t)snprintf(w->out + w->n, sizeof w->out - w->n, "%s%.*s", w->n > 0 ? "|" : "", (int)n, word);
    return LT_OK;
}

static void split_rules(void **state)
{
    (void)state;
    static const struct { const char *pre, *text, *want; } rows[] = {
        {"gpt-2", "I'll pay 1234, OK?  \n x", "I|'ll| pay| 1234|,| OK|?|  \n| x"},
        {"smollm", "a 1234\xd9\xa3z", "a| |1|2|3|4|\xd9\xa3|z"},
        {"llama-bpe", "12345 I'LL go\r\n\r\n  \xc3\xa9t\xc3\xa9!!\n", "123|45| I|'LL| go|\r\n\r\n| | \xc3\xa9t\xc3\xa9|!!\n"},
        {"qwen2", "12 (x", "1|2| (|x"},
        {"qwen35", "e\xcc\x81 o", "e\xcc\x81| o"},
        {"qwen2", "e\xcc\x81x", "e|\xcc\x81x"},
        {"tekken", "HelloWORLD\xc3\x89t\xc3\xa9 123/\n", "Hello|WORLD\xc3\x89t\xc3\xa9| |1|2|3|/\n"},
        {"gpt-4o", "camelCase's 1234 it'LL", "camel|Case's| |123|4| it'LL"},
        {"dbrx", "1234x", "123|4|x"},
        {"deepseek-coder", "a b\n12\xe4\xb8\xad\xe6\x96\x87", "a| b|\n|1|2|\xe4\xb8\xad\xe6\x96\x87"},
        {"falcon", "x=1234 ok", "x|=|123|4| ok"},
        {"gpt-2", "a\xe1\xa0\x8e b", "a|\xe1\xa0\x8e| b"}, /* U+180E is no white space */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt__split_rule *r = lt__split_rule_find(rows[i].pre);
        lt__split *s;
        lt_err err = {0};
        words w = {.n = 0};
        assert_non_null(r);
        assert_int_equal(lt__split_create(ctx, r, &s, &err), LT_OK);
        assert_int_equal(lt__split_run(s, rows[i].text, strlen(rows[i].text), note_word, &w, &err), LT_OK);
        if (strcmp(w.out, rows[i].want) != 0)
            fail_msg("%s: got  %s\nwant %s", rows[i].pre, w.out, rows[i].want);
        lt__split_destroy(s);
    }
    assert_null(lt__split_rule_find("viking"));
}

static void whole_words_where_the_family_says_so(void **state)
{
    (void)state;
    const struct { const char *pre, *want; } rows[] = {{"llama-bpe", "abc"}, {"tekken", "abc"}, {"qwen2", "a|bc"}};
    for (size_t i = 0; i < 3; i++) {
        toy *v = toy_bpe(rows[i].pre);
        toy_learn(v, "b", "c");
        toy_add(v, "abc", 1, 0); /* no merge leads there */
        lt_tokenizer *tk = build(v);
        assert_string_equal(pieces(tk, "abc", 0), rows[i].want);
        lt_tokenizer_destroy(tk);
    }
}

static void nfc_where_the_family_says_so(void **state)
{
    (void)state;
    lt_tokenizer *tk = build(toy_bpe("qwen2"));
    lt_tokens ids = encode_n(tk, "xe\xcc\x81", 4, 0);
    assert_decodes(tk, &ids, "x\xc3\xa9", 3);
    lt_tokens_clear(&ids);
    /* Text that is no UTF-8 is left as it is beside normalised text. */
    ids = encode_n(tk, "e\xcc\x81\xff" "e\xcc", 6, 0);
    assert_decodes(tk, &ids, "\xc3\xa9\xff" "e\xcc", 5);
    lt_tokens_clear(&ids);
    lt_tokenizer_destroy(tk);
}

static void bytes_without_a_letter(void **state)
{
    (void)state;
    toy *v = toy_bpe("gpt-2");
    char c4[4], ff[4];
    c4[lt__utf8_put(lt__byte_letter(4), c4)] = '\0';
    ff[lt__utf8_put(lt__byte_letter(0xff), ff)] = '\0';
    strcpy(v->tokens[4], "4");
    v->tokens[4] = realloc(v->tokens[4], 8);
    strcpy(v->tokens[4], "four");
    v->token_len[4] = 4;
    v->tokens[0xff] = realloc(v->tokens[0xff], 8);
    strcpy(v->tokens[0xff], "ffff");
    v->token_len[0xff] = 4;
    lt_tokenizer *tk = build(v);
    /* A valid character is dropped as the vendors drop it, an invalid byte shows as U+FFFD. */
    lt_tokens ids = encode_n(tk, "a\x04" "b\xff" "c\xfe", 6, 0);
    assert_decodes(tk, &ids, "ab\xef\xbf\xbd" "c\xfe", 7);
    lt_tokens_clear(&ids);
    lt_tokenizer_destroy(tk);
}

/* Streamed text is the whole text with its invalid parts as U+FFFD, and whole characters only. */
static void streaming(void **state)
{
    (void)state;
    lt_tokenizer *tks[2] = {build(toy_bpe("gpt-2")), build(toy_spm(true))};
    uint64_t seed = 42;
    static const char *const chunks[] = {"a", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xff", "\xe4\xb8", "\xf0\x9f", "\x80", "\xed\xa0\x80", " ", "\xf4\x90\x80\x80", "\xc0\xaf"};
    for (int round = 0; round < 600; round++) {
        const lt_tokenizer *tk = tks[round % 2];
        char text[128] = "", got[512] = "", want[512] = "";
        for (int k = 0, n = (int)(next_random(&seed) % 9); k < n; k++)
            strcat(text, chunks[next_random(&seed) % (sizeof chunks / sizeof *chunks)]);
        lt_tokens ids = encode_n(tk, text, strlen(text), 0);
        lt_detok *d;
        lt_err err;
        size_t o = 0, n;
        assert_int_equal(lt_detok_create(tk, &d, &err), LT_OK);
        for (size_t i = 0; i <= ids.n; i++) {
            const char *s = i < ids.n ? lt_detok_push(d, ids.v[i], &n) : lt_detok_flush(d, &n);
            assert_int_equal(lt__utf8_valid(s, n), n);
            memcpy(got + o, s, n);
            o += n;
        }
        /* Lossy by the practice of Unicode: one U+FFFD for each longest run that begins a character. */
        size_t w = 0, len = strlen(text);
        for (size_t i = 0; i < len;) {
            uint32_t cp;
            size_t k = lt__utf8_next(text + i, len - i, &cp);
            if (k == 0) {
                static const char *const tails[] = {"\x80", "\x80\x80", "\x9f\x98\x80", "\xa0\x80", "\xa0"};
                size_t run = 1;
                for (size_t m = len - i < 3 ? len - i : 3; m > 1; m--) {
                    bool may = false;
                    for (size_t t = 0; t < 5; t++) {
                        char probe[8] = "";
                        memcpy(probe, text + i, m);
                        strcpy(probe + m, tails[t]);
                        may |= lt__utf8_next(probe, strlen(probe), &cp) > m;
                    }
                    if (may) {
                        run = m;
                        break;
                    }
                }
                memcpy(want + w, "\xef\xbf\xbd", 3);
                w += 3;
                i += run;
            } else {
                memcpy(want + w, text + i, k);
                w += k;
                i += k;
            }
        }
        assert_int_equal(o, w);
        assert_memory_equal(got, want, w);
        lt_detok_destroy(d);
        lt_tokens_clear(&ids);
    }
    lt_tokenizer_destroy(tks[0]);
    lt_tokenizer_destroy(tks[1]);
}

static void control_tokens_are_silent_unless_shown(void **state)
{
    (void)state;
    lt_tokenizer *tk = build(spaced());
    lt_detok *d;
    lt_err err;
    size_t n;
    assert_int_equal(lt_detok_create(tk, &d, &err), LT_OK);
    int32_t end = lt_tokenizer_find(tk, "<|end|>"), x = lt_tokenizer_find(tk, LT__METASPACE "x");
    lt_detok_push(d, end, &n);
    assert_int_equal(n, 0);
    lt_detok_show_special(d, true);
    assert_memory_equal(lt_detok_push(d, end, &n), "<|end|>", 7);
    assert_int_equal(n, 7);
    assert_memory_equal(lt_detok_push(d, x, &n), "x", 1); /* the prefix was the encoder's */
    assert_int_equal(n, 1);
    assert_memory_equal(lt_detok_push(d, x, &n), " x", 2);
    lt_detok_push(d, -1, &n);
    assert_int_equal(n, 0);
    lt_detok_push(d, 1 << 30, &n);
    assert_int_equal(n, 0);
    assert_true(lt_tokenizer_ends(tk, end));
    assert_true(lt_tokenizer_ends(tk, lt_tokenizer_eos(tk)));
    assert_false(lt_tokenizer_ends(tk, x));
    lt_detok_destroy(d);
    char *text;
    int32_t bad[] = {x, 1 << 20};
    assert_int_equal(lt_tokenizer_decode(tk, bad, 2, false, &text, &n, &err), LT_E_INVALID);
    assert_non_null(strstr(err.text, "1048576"));
    lt_tokenizer_destroy(tk);
}

static toy *spoil(int how)
{
    bool spm = how >= 20;
    toy *v = spm ? toy_spm(true) : toy_bpe("gpt-2");
    switch (how) {
    case 0: v->d.n_tokens = 0; break;
    case 1: v->token_len[7] = 0; break;
    case 2: toy_add(v, "a", 1, 0); break;
    case 3: v->d.n_types--; break;
    case 4: v->types[9] = 0; break;
    case 5: v->types[9] = 7; break;
    case 6: toy_merge(v, "a b"); break;
    case 7: toy_merge(v, "ab"); break;
    case 8: toy_merge(v, "a "); break;
    case 9: toy_merge(v, ""); break;
    case 10: v->d.eos = 256; break;
    case 11: v->d.bos = INT64_MAX; break;
    case 12: v->d.pre = "viking"; break;
    case 13: v->d.model = "wordpiece"; break;
    case 14: v->d.add_bos = 1; break;
    case 15: v->token_len[3] = UINT16_MAX + 1; break;
    case 16: for (int i = 0; i < 256; i++) v->types[i] = 3; break;
    case 17: toy_merge(v, "zz a"); break;
    case 20: v->d.n_scores--; break;
    case 21: v->d.scores = NULL; v->d.n_scores = 0; break;
    case 22: v->scores[5] = 0.0 / 0.0; break;
    case 23: v->types[9] = 1; break;
    case 24: toy_add(v, "<0x1>", 6, 0); break;
    case 25: v->d.unk = 4096; break;
    case 26: v->d.add_eos = 1; v->d.eos = -1; break;
    default: toy_free(v); return NULL;
    }
    return v;
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    int seen = 0;
    for (int how = 0; how < 30; how++) {
        toy *v = spoil(how);
        if (v == NULL)
            continue;
        seen++;
        lt_tokenizer *tk = (void *)1;
        lt_err err = {0};
        lt_status s = lt__tokenizer_build(ctx, &v->d, &tk, &err);
        if (s != (how == 12 || how == 13 ? LT_E_UNSUPPORTED : LT_E_FORMAT))
            fail_msg("case %d gave %s", how, lt_status_name(s));
        assert_null(tk);
        assert_ptr_equal(strstr(err.text, "toy.gguf"), err.text);
        if (how == 0)
            v->d.n_tokens = 256;
        toy_free(v);
    }
    assert_int_equal(seen, 25);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
}

static void spm_without_bytes_needs_unknown(void **state)
{
    (void)state;
    toy *v = toy_spm(false);
    v->d.unk = -1;
    lt_tokenizer *tk;
    lt_err err;
    assert_int_equal(lt__tokenizer_build(ctx, &v->d, &tk, &err), LT_E_FORMAT);
    assert_non_null(strstr(err.text, "unknown_token_id"));
    toy_free(v);
}

static void a_vocabulary_of_one_byte(void **state)
{
    (void)state;
    toy *v = toy_new("gpt2", "gpt-2");
    toy_add(v, "a", 1, 0);
    lt_tokenizer *tk = build(v);
    lt_tokens ids = encode_n(tk, "bab\xff", 4, 0);
    assert_int_equal(ids.n, 1);
    lt_tokens_clear(&ids);
    lt_tokenizer_destroy(tk);
}

/* Long runs, each of which is one word or one candidate of a look-ahead. */
static void long_texts_take_linear_time(void **state)
{
    (void)state;
    static const char *const rules[] = {"gpt-2", "llama-bpe", "tekken", "gpt-4o", "qwen35", "deepseek-coder", "falcon", "smollm"};
    static const char *const units[] = {"a", " ", "A", "\n", "1", "\xe4\xb8\xad", "'", "\xcc\x81", "aB", " \n", "\xff", "/", "a\xcc\x81"};
    enum { SHORT = 1 << 15, LONG = 1 << 19 };
    char *text = malloc(LONG + 8);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        toy *v = toy_bpe(rules[r]);
        toy_learn(v, "a", "a");
        toy_learn(v, "aa", "aa");
        lt_tokenizer *tk = build(v);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t k = strlen(units[u]);
            for (size_t i = 0; i < LONG; i += k)
                memcpy(text + i, units[u], k);
            double cost[2];
            for (int big = 0; big < 2; big++) {
                size_t n = (big ? LONG : SHORT) / k * k;
                struct timespec a, b;
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
                lt_tokens ids = encode_n(tk, text, n, LT_ENCODE_SPECIAL);
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
                cost[big] = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
                lt_tokens_clear(&ids);
            }
            /* 16 times the text: quadratic would be 256 times the work. */
            if (cost[1] > 100 * cost[0] + 200)
                fail_msg("%s: %.1f ms for 32 KiB of \"%s\", %.1f ms for 512 KiB", rules[r], cost[0], units[u], cost[1]);
        }
        lt_tokenizer_destroy(tk);
    }
    free(text);
}

static void the_cache_changes_nothing(void **state)
{
    (void)state;
    static char text[1 << 15];
    static lt__cached cache[LT__CACHE_SLOTS];
    uint64_t seed = 7;
    for (int kind = 0; kind < 3; kind++) {
        toy *v = kind == 1 ? spaced() : toy_bpe(kind == 0 ? "gpt-2" : "llama-bpe");
        if (kind != 1) {
            toy_learn(v, "a", "b");
            toy_add(v, "abc", 1, 0);
        }
        random_text(&seed, kind == 1 ? "xxy\xe2\x96\x81\xe2\x96\x81" : "abcab ab \n'1xyz", text, sizeof text - 1);
        lt_tokenizer *tk = build(v);
        lt_tokens with = {.ctx = ctx}, without = {.ctx = ctx};
        memset(cache, 0, sizeof cache);
        lt__job a = {tk, &with, cache}, b = {tk, &without, NULL};
        lt_err err;
        lt_status (*encode)(lt__job *, const char *, size_t, lt_err *) = kind == 1 ? lt__spm_encode : lt__bpe_encode;
        assert_int_equal(encode(&a, text, sizeof text - 1, &err), LT_OK);
        assert_int_equal(encode(&b, text, sizeof text - 1, &err), LT_OK);
        assert_int_equal(with.n, without.n);
        assert_memory_equal(with.v, without.v, with.n * sizeof *with.v);
        uint32_t used = 0;
        for (uint32_t i = 0; i < LT__CACHE_SLOTS; i++)
            used += cache[i].len > 0;
        assert_true(used > 20);
        lt_tokens_clear(&with);
        lt_tokens_clear(&without);
        lt_tokenizer_destroy(tk);
    }
}

typedef struct worker { const lt_tokenizer *tk; const char *text; const lt_tokens *want; bool same; } worker;
static void *encode_often(void *arg)
{
    worker *w = arg;
    w->same = true;
    for (int i = 0; i < 30; i++) {
        lt_tokens ids = {0};
        lt_err err;
        w->same &= lt_tokenizer_encode(w->tk, w->text, strlen(w->text), LT_ENCODE_SPECIAL, &ids, &err) == LT_OK &&
                   ids.n == w->want->n && memcmp(ids.v, w->want->v, ids.n * sizeof *ids.v) == 0;
        lt_tokens_clear(&ids);
    }
    return NULL;
}

static void many_threads_one_tokenizer(void **state)
{
    (void)state;
    toy *v = toy_bpe("qwen2");
    toy_learn(v, "e", "r");
    lt_tokenizer *tk = build(v);
    const char *text = "Over there, 123 e\xcc\x81 \xff tests were  run; overhead? never.";
    lt_tokens want = encode_n(tk, text, strlen(text), LT_ENCODE_SPECIAL);
    pthread_t t[8];
    worker w[8];
    for (int i = 0; i < 8; i++) {
        w[i] = (worker){tk, text, &want, false};
        assert_int_equal(pthread_create(&t[i], NULL, encode_often, &w[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], NULL);
        assert_true(w[i].same);
    }
    lt_tokens_clear(&want);
    lt_tokenizer_destroy(tk);
}

static bool fail_nth(void *user, lt_fault_point point)
{
    int64_t *left = user;
    return point == LT_FAULT_HOST_ALLOC && *left >= 0 && (*left)-- == 0;
}

/* Everything once; E_HOST_OOM or the same ids. */
static lt_status whole_life(lt_ctx *c, toy *v, const char *text, size_t n, uint64_t *sum, lt_err *err)
{
    lt_tokenizer *tk;
    lt_detok *d = NULL;
    lt_tokens ids = {0};
    char *back = NULL;
    size_t bytes = 0;
    lt_status s = lt__tokenizer_build(c, &v->d, &tk, err);
    if (s != LT_OK)
        return s;
    s = lt_tokenizer_encode(tk, "x", 1, 0, &ids, err);
    size_t before = ids.n;
    if (s == LT_OK) {
        s = lt_tokenizer_encode(tk, text, n, LT_ENCODE_BOS | LT_ENCODE_SPECIAL, &ids, err);
        if (s != LT_OK)
            assert_int_equal(ids.n, before);
    }
    if (s == LT_OK)
        s = lt_tokenizer_decode(tk, ids.v, ids.n, true, &back, &bytes, err);
    if (s == LT_OK)
        s = lt_detok_create(tk, &d, err);
    if (s == LT_OK) {
        *sum = bytes;
        for (size_t i = 0; i < ids.n; i++)
            *sum = *sum * 31 + (uint32_t)ids.v[i];
    }
    lt_detok_destroy(d);
    lt_tokenizer_free_text(tk, back, bytes);
    lt_tokens_clear(&ids);
    lt_tokenizer_destroy(tk);
    return s;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static char text[1500];
    uint64_t seed = 3;
    random_text(&seed, "abc xxxxxx <|end|>\n1\xc3\xa9\xff", text, sizeof text - 1);
    memset(text + 700, 'a', 120); /* a word for the heap */
    memcpy(text + 900, "e\xcc\x81", 3);
    for (int kind = 0; kind < 3; kind++) {
        toy *v = kind == 0 ? spaced() : toy_bpe(kind == 1 ? "qwen2" : "smollm");
        if (kind == 0)
            toy_add(v, "xx", 5, -1);
        else
            toy_learn(v, "a", "a");
        int64_t left = -1;
        uint64_t want = 0, got = 0;
        lt_ctx_desc cd = lt_ctx_desc_default();
        lt_ctx *c;
        lt_err err;
        cd.fault = fail_nth;
        cd.fault_user = &left;
        assert_int_equal(lt_ctx_create(&cd, &c, &err), LT_OK);
        assert_int_equal(whole_life(c, v, text, sizeof text - 1, &want, &err), LT_OK);
        int failed = 0, survived = 0;
        for (int64_t nth = 0;; nth++) {
            left = nth;
            lt_status s = whole_life(c, v, text, sizeof text - 1, &got, &err);
            bool fired = left < 0;
            left = -1;
            assert_int_equal(lt_ctx_host_bytes(c), 0);
            if (!fired) {
                assert_int_equal(s, LT_OK);
                break;
            }
            if (s == LT_OK) {
                survived++; /* the cache, or PCRE2's compiler, without which all goes on */
                assert_true(got == want);
            } else {
                failed++;
                assert_int_equal(s, LT_E_HOST_OOM);
            }
        }
        print_message("kind %d: %d allocations refused, %d did without\n", kind, failed, survived);
        assert_true(failed > 10);
        assert_true(survived < 40);
        lt_ctx_destroy(c);
        toy_free(v);
    }
}

static int make(void **state)
{
    (void)state;
    return lt_ctx_create(NULL, &ctx, NULL);
}

static int unmake(void **state)
{
    (void)state;
    uint64_t left = lt_ctx_host_bytes(ctx);
    lt_ctx_destroy(ctx);
    return left != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_is_the_naive_one),
        cmocka_unit_test(spm_is_the_naive_one),
        cmocka_unit_test(unused_pieces_are_cut_back),
        cmocka_unit_test(unknown_runs_are_one),
        cmocka_unit_test(special_pieces_come_first),
        cmocka_unit_test(spm_prefix_and_spaces),
        cmocka_unit_test(phi3_swallows_space_behind_its_tokens),
        cmocka_unit_test(split_rules),
        cmocka_unit_test(whole_words_where_the_family_says_so),
        cmocka_unit_test(nfc_where_the_family_says_so),
        cmocka_unit_test(bytes_without_a_letter),
        cmocka_unit_test(streaming),
        cmocka_unit_test(control_tokens_are_silent_unless_shown),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(spm_without_bytes_needs_unknown),
        cmocka_unit_test(a_vocabulary_of_one_byte),
        cmocka_unit_test(long_texts_take_linear_time),
        cmocka_unit_test(the_cache_changes_nothing),
        cmocka_unit_test(many_threads_one_tokenizer),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
