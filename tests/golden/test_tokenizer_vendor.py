"""SmolLM2 and Gemma 3 against the vendors' own libraries, recorded by make_tokenizer_golden.py.
Texts that are no UTF-8 have no vendor's answer: they must come back as they were."""
import json
import lzma
import os
import pathlib
import subprocess
import sys

import gguf_keys

HERE = pathlib.Path(__file__).parent


def load(name):
    return json.loads(lzma.decompress((HERE / name).read_bytes()))


def without(text, missing):
    """What a vocabulary that lacks some bytes can give back: they are dropped in valid text,
    U+FFFD stands for them elsewhere."""
    out, at = bytearray(), 0
    while at < len(text):
        for n in (1, 2, 3, 4):
            try:
                text[at:at + n].decode()
                out += bytes(b for b in text[at:at + n] if b not in missing)
                break
            except UnicodeDecodeError:
                pass
        else:
            n = 1
            out += text[at:at + 1] if text[at] not in missing else "\ufffd".encode()
        at += n
    return bytes(out)


def check(tool, model, texts, golden, name, special):
    keys = gguf_keys.read(model)
    missing = set()
    if keys["tokenizer.ggml.model"] == b"gpt2":
        have = set(keys["tokenizer.ggml.tokens"])
        missing = {b for b, c in gguf_keys.letters().items() if c.encode() not in have}
    framed = b"".join(b"%d\n%s" % (len(t), t) for t in texts)
    out = subprocess.run([tool, model] + (["special"] if special else []), input=framed, capture_output=True)
    if out.returncode:
        print(out.stderr.decode())
        return 1
    lines = out.stdout.decode().splitlines()
    wrong, exact, recorded, dropped = 0, 0, 0, 0
    if len(lines) != len(texts):
        print(f"{name}: {len(lines)} answers to {len(texts)} texts")
        return 1
    for text, want, line in zip(texts, golden, lines):
        ids, back = line.split("|")
        ids, back = [int(i) for i in ids.split()], bytes.fromhex(back)
        # A SentencePiece model cannot tell U+2581 from a space.
        expect = text.replace("\u2581".encode(), b" ") if keys["tokenizer.ggml.model"] == b"llama" else text
        exact += back == expect
        dropped += without(expect, missing) != expect
        bad_trip = back != without(expect, missing)
        recorded += want is not None
        if bad_trip or (want is not None and ids != want):
            wrong += 1
            if wrong <= 10:
                print(f"{name}: {text!r}\n  ours   {ids}\n  vendor {want}\n  back   {back!r}")
    print(f"{name}: {len(texts)} texts, {recorded} with a vendor's answer, {wrong} wrong; {exact} back exactly, "
          f"{dropped} hold bytes the vocabulary has no token for")
    return wrong != 0 or recorded < 2000


def main():
    tool = f"{sys.argv[1]}/tests/encode_texts"
    texts = [t.encode("latin-1") for t in load("tokenizer_texts.xz")]
    rc, ran = 0, 0
    for name, var, special in ("smollm2", "LT_TEST_SMOLLM2", True), ("gemma3", "LT_TEST_GEMMA3", False):
        model = os.environ.get(var)
        if not model:
            print(f"{var} is not set: {name} not compared")
            continue
        ran += 1
        rc |= check(tool, model, texts, load(f"tokenizer_{name}.xz"), name, special)
    return rc if ran else 77


sys.exit(main())
