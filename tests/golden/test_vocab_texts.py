"""Every text of ../shared/data/vocab whose vocabulary is there, against the expected ids."""
import pathlib
import subprocess
import sys
import tempfile

import mend_vocab

VOCAB = pathlib.Path("../shared/data/vocab")


def texts(path):
    return path.read_bytes().split(b"\n__ggml_vocab_test__\n")[:-1]


def whole(path):
    """The file's bytes, mended where it was once re-encoded as text (see mend_vocab.py)."""
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return mend_vocab.mend(data)


def main():
    files = sorted(VOCAB.glob("*.gguf"))
    if not files:
        print(f"{VOCAB} has no vocabularies")
        return 77
    wrong = total = 0
    for path in files:
        cases = texts(path.with_name(path.name + ".inp"))
        wanted = path.with_name(path.name + ".out").read_text().splitlines()
        with tempfile.NamedTemporaryFile(suffix=".gguf") as model:
            model.write(whole(path))
            model.flush()
            out = subprocess.run([f"{sys.argv[1]}/tests/encode_texts", model.name], capture_output=True,
                                 input=b"".join(b"%d\n%s" % (len(t), t) for t in cases))
        if out.returncode:
            print(path.name, out.stderr.decode())
            return 1
        got = out.stdout.decode().splitlines()
        bad = 0
        for text, want, line in zip(cases, wanted, got, strict=True):
            ids, back = line.split("|")
            if ids.split() != want.split() or bytes.fromhex(back) != text:
                bad += 1
                print(f"{path.name}: {text!r}\n  ours {ids}\n  want {want}\n  back {bytes.fromhex(back)!r}")
        print(f"{path.name}: {len(cases)} texts, {bad} wrong")
        wrong, total = wrong + bad, total + len(cases)
    print(f"{len(files)} vocabularies, {total} texts, {wrong} wrong")
    return wrong != 0 or total == 0


sys.exit(main())
