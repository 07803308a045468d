"""Writes golden/tokenizer_texts.xz and golden/tokenizer_{smollm2,gemma3}.xz: texts and the ids the
vendors' own libraries give them. Needs tokenizers and sentencepiece; reads the two models.

    python3 make_tokenizer_golden.py SMOLLM2.gguf GEMMA3.gguf

Texts: a JSON list of strings in Latin-1, a byte a character, because some are no UTF-8.
Ids: a JSON list of lists; null where the text is no UTF-8 (the vendors take characters, not bytes).
"""
import json
import lzma
import pathlib
import random
import sys
import unicodedata

import gguf_keys

SENTENCES = """The quick brown fox jumps over the lazy dog, doesn't it? I'd say WE'VE won; they'll see.
Der Fluß fließt südwärts, während Käufer über Größe streiten.
Où est passé l'élève ? Ça dépend : « peut-être » demain…
El niño comió piñas; ¿qué más quería? ¡Nada!
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
敏捷的棕色狐狸跳过了懒狗。今天天气真好，我们去公园吧！
色は匂へど散りぬるを、我が世誰ぞ常ならむ。カタカナとひらがな。
다람쥐 헌 쳇바퀴에 타고파. 오늘은 날씨가 좋네요.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
דג סקרן שט בים מאוכזב ולפתע מצא חברה
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul ığdır
Trời xanh đẹp quá, chúng ta đi chơi nhé! Tiếng Việt có dấu.
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்
ბგერა და ასო ქართულ ენაში. Հայերեն այբուբեն.
ሰማይ አይታረስ ንጉሥ አይከሰስ።
ខ្ញុំអាចញ៉ាំកញ្ចក់បាន ដោយគ្មានបញ្ហា
Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa
Жил-был 1 кот (3,5 кг) и 12 мышей — всего 13 зверей.""".split("\n")
CODE = """for (int i = 0; i < n; ++i) { sum += a[i] * 0x1F; }
def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n
SELECT * FROM users WHERE id = 42 AND name LIKE '%O''Brien%';
<div class="a b"><p>Hello &amp; bye</p></div>\n\t<br/>
\\documentclass{article}\\begin{equation} e^{i\\pi}+1=0 \\end{equation}
{"key": [1, 2.5e-10, null, true], "nested": {"a": "\\u00e9"}}
#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n
let x = y?.z ?? !w; a |= b >>> 3; c **= 2; // => ~d
$ curl -sS http://example.org/a?b=c&d=%20e | jq '.[] | select(.x>1)'
    if (a)\n        b();\n\n\n    else\n\t\tc();""".split("\n")
EMOJI = "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🇯🇵🇧🇷 ❤️ ☕️ 🧑🏿‍🚀 🤷🏼‍♀️ 🫠 👩🏻‍❤️‍💋‍👨🏾 1️⃣ ©️ ⁉️ 🏴󠁧󠁢󠁳󠁣󠁴󠁿".split(" ")
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\u180e", "\ufeff", "    ", "        ", " \n ", "\n \n", " \t "]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TAGS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<unk>", "<0x0A>", "</s>", "<h1>", "</h1>", "<div>", "<repo_name>", "[multimodal]", "<unused7>", "▁", "▁▁", "<pad>"]
KINDS = []


def kind(weight):
    def add(fn):
        KINDS.extend([fn] * weight)
        return fn
    return add


def words(r, text, most):
    w = text.split(" ")
    at = r.randrange(len(w))
    return " ".join(w[at:at + r.randint(1, most)])


@kind(6)
def sentence(r):
    return words(r, r.choice(SENTENCES), 8)


@kind(3)
def code(r):
    return words(r, r.choice(CODE), 9).replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")


@kind(3)
def emoji(r):
    return r.choice(["", " "]).join(r.choice(EMOJI) for _ in range(r.randint(1, 4)))


@kind(3)
def spaces(r):
    return "".join(r.choice(SPACES) * r.choice([1, 1, 2, 3, 5]) for _ in range(r.randint(1, 4)))


@kind(2)
def digits(r):
    return "".join(r.choice("0123456789") for _ in range(r.choice([1, 2, 3, 4, 7, 20, 40]))) + r.choice(["", ",", ".", "٣٤٥", "²³", "½", "Ⅻ", "一"])


@kind(2)
def combining(r):
    marks = [chr(c) for c in range(0x300, 0x36f)]
    return "".join(r.choice(LETTERS + "éñøßçа汉") + "".join(r.sample(marks, r.randint(0, 3))) for _ in range(r.randint(2, 7)))


@kind(2)
def anything(r):
    out = []
    while len(out) < r.randint(2, 8):
        c = chr(r.choice([r.randrange(0x20, 0x600), r.randrange(0x600, 0x3000), r.randrange(0x3000, 0xfffe), r.randrange(0x10000, 0x323b0)]))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            out.append(c)
    return "".join(out)


@kind(1)
def controls(r):
    return "".join(chr(r.choice([*range(0, 32), 127, *range(128, 160)])) for _ in range(r.randint(1, 5)))


@kind(2)
def tags(r):
    return r.choice(["", " ", "x"]) + r.choice(TAGS) + r.choice(["", " ", "\n", "y"])


@kind(2)
def noise(r):
    return "".join(r.choice(LETTERS + LETTERS + "0123456789 .,'\"!?-_/\\()[]{}<>|@#$%^&*+=~`;:") for _ in range(r.randint(1, 24)))


@kind(1)
def repeats(r):
    return r.choice(["a", "-", "=", "ab", "哈", ". ", "\n", "—", "!?", "0"]) * r.randint(2, 70)


@kind(2)
def shortened(r):
    return r.choice(["I", "you", "THEY", "ſ", "l"]) + r.choice(["'s", "'S", "'ll", "'LL", "'ve", "'re", "'RE", "'d", "'t", "'m", "’s", "'ſ", "''s"])


def make_texts():
    r = random.Random(20240817)
    texts = [s.encode() for s in ["", " ", "\n", "a", "\0", *SENTENCES, *CODE, *EMOJI, *SPACES, *TAGS]]
    while len(texts) < 2300:
        n = r.choice([1, 1, 2, 2, 3, 4])
        texts.append(r.choice(["", "", " ", "\n"]).join(r.choice(KINDS)(r) for _ in range(n)).encode("utf-8", "replace"))
    bad = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe\xff"]
    while len(texts) < 2600:
        parts = [r.choice(KINDS)(r).encode("utf-8", "replace") for _ in range(r.randint(1, 3))]
        for _ in range(r.randint(1, 3)):
            parts.insert(r.randrange(len(parts) + 1), r.choice(bad))
        text = b"".join(parts)
        if r.random() < 0.3 and len(text) > 2:
            text = text[r.randrange(1, len(text)):]
        texts.append(text)
        texts.append(text.decode("utf-8", "replace").encode())
    return texts


def smollm2(path):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    keys = gguf_keys.read(path)
    tokens = [t.decode() for t in keys["tokenizer.ggml.tokens"]]
    merges = [tuple(m.decode().split(" ", 1)) for m in keys["tokenizer.ggml.merges"]]
    tk = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tk.decoder = decoders.ByteLevel()
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in
                           zip(tokens, keys["tokenizer.ggml.token_type"]) if kind == 3])
    return lambda text: tk.encode(text, add_special_tokens=False).ids


def gemma3(path):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    keys = gguf_keys.read(path)
    m = pb.ModelProto()
    for i, (piece, score, kind) in enumerate(zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"],
                                                 keys["tokenizer.ggml.token_type"])):
        p = m.pieces.add()
        piece = piece.decode()
        # The file spells runs of spaces as spaces; a SentencePiece model has them as U+2581.
        p.piece = piece.replace(" ", "\u2581") if kind == 4 else piece
        p.score = score
        p.type = 2 if i == keys["tokenizer.ggml.unknown_token_id"] else kind
    t = m.trainer_spec
    t.model_type, t.byte_fallback, t.vocab_size = pb.TrainerSpec.BPE, True, len(m.pieces)
    t.unk_id, t.bos_id, t.eos_id, t.pad_id = 3, 2, 1, 0
    t.unk_piece, t.bos_piece, t.eos_piece, t.pad_piece = "<unk>", "<bos>", "<eos>", "<pad>"
    n = m.normalizer_spec
    n.name, n.add_dummy_prefix, n.remove_extra_whitespaces, n.escape_whitespaces = "identity", False, False, True
    sp = sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())
    return lambda text: sp.encode(text)


def write(name, value):
    data = lzma.compress(json.dumps(value, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME)
    (pathlib.Path(__file__).parent / name).write_bytes(data)
    print(name, len(data), "bytes")


def main():
    texts = make_texts()
    write("tokenizer_texts.xz", [t.decode("latin-1") for t in texts])
    for name, make, path in ("smollm2", smollm2, sys.argv[1]), ("gemma3", gemma3, sys.argv[2]):
        encode, rows = make(path), []
        for t in texts:
            try:
                rows.append(encode(t.decode()))
            except UnicodeDecodeError:
                rows.append(None)
        write(f"tokenizer_{name}.xz", rows)


main()
