"""Makes logits.bin and logits.json: expected logits of small random models and of real ones.

    make_golden.py BUILD [--smollm2 FILE] [--gemma3 FILE]
    make_golden.py BUILD --only REGEX    makes those whose name begins so; the others stay as they are

Models are written by BUILD/tests/mkmodel; expected values come from reference.py. Where
llama_cpp can be imported, its own error against the same reference is stored as peer_nmse.

Tolerances (normalised mean square error over all stored logits):
  float weights      1e-11: the library measures 2e-14 to 2e-13 (f32 sums), the smallest planted
                     bug 3e-9 (norm eps times 100).
  quantised weights  1.1 * peer_nmse, at most 1e-3; 1e-3 where there is no peer. The error is that
                     of quantising activations to 8 bits, which peer does too.
  real models        1.1 * peer_nmse.
The error of a quantised product is noise that differs from token to token by a factor of ten, so
many tokens and few columns are stored: the ratio of two such errors over 16 tokens of a tiny
model, or 64 of a real one, scatters by 30 %, over these by 5 %.
A token whose next expert scores almost as well as its last may get the other one by a rounding, and one such token hides
all other error; so tokens are drawn until every one's experts lead by a margin, in every layer.
`bugs` holds the error of each planted bug in the reference; the test wants some model of each
architecture to be at least 10 tolerances away, for every bug.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = 1
ARCHS = ("llama", "qwen2", "qwen3", "gemma3", "phi3")
FLOATS = ("F32", "F16", "BF16")
DTYPES = FLOATS + ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
                   "MXFP4")
MIXED = ["--type", "Q4_K", "--type-of", "attn_v|qkv=F16", "--type-of", "ffn_down=Q6_K", "--type-of", "blk.1.*up=Q5_0",
         "--type-of", "token_embd=Q8_0", "--type-of", "blk.0.attn_output=BF16"]
BUGGY = ("F32", "Q4_K")  # types for which bugs are measured
TOKENS, COLUMNS = 128, 40  # stored of a tiny model
REAL_TOKENS, REAL_COLUMNS = 256, 250
TEXT = """A tide pool keeps what the sea leaves behind. Twice a day the water returns, lifts everything that can be
lifted, and sets it down again a little further along. Nothing in the pool is larger than the pool; what is larger has
to come in pieces, and to wait for its turn. 17 crabs, 4 stars, 1 eel: count them.

The keeper of the lighthouse wrote in his book that the ferry was late again. "Forty minutes," he wrote, "and no word
from the harbour." He had kept such books since 1962, one for each year, and he had never once read in them. His
daughter, who repaired radios in the town, thought that somebody should. So she took the first of them home, dried
its pages over the stove, and began to copy the numbers: wind, pressure, the hour of the lamp.

def mean(values):
    total = 0.0
    for v in values:
        total += v
    return total / len(values)

By the third winter she knew that the storms had moved. They came earlier in the year, and from further south, and
they were shorter than those her grandmother had told her about. She drew a curve of it on the back of a chart, and
she pinned the chart to the wall of the workshop, between a calendar and the price of copper wire."""


LAYERS = {"gemma2": ["--layers", "4"], "gemma3": ["--layers", "7"]}
MARGIN, FLOAT_MARGIN = 0.05, 1e-3  # of router scores, whose deviation is about 1


def basic(archs):
    for arch in archs:
        base = ["--arch", arch, "--preset", "tiny", "--vocab", "320"] + LAYERS.get(arch, [])
        for dtype in DTYPES:
            yield f"{arch}-{dtype}", arch, dtype, base + ["--type", dtype], TOKENS, 0
        yield f"{arch}-mixed", arch, "mixed", base + MIXED, TOKENS, 0
        # Past a page of the KV cache, and past the window where there is one.
        far = base + ["--type", "F32", "--window", "40"]
        yield f"{arch}-far", arch, "F32", far, 300, 300 - TOKENS
        yield f"{arch}-heads", arch, "F32", base + ["--type", "F32", "--embd", "320", "--heads", "4", "--kv-heads", "1", "--head-dim", "80"], TOKENS, 0


def specs():
    """(name, architecture, dtype label, mkmodel arguments, tokens, first stored token). The place gives the seed: new ones go last."""
    yield from basic(ARCHS)
    for arch in ("llama", "phi3"):
        base = ["--arch", arch, "--preset", "tiny", "--vocab", "320", "--type", "F32", "--rope-factors"]
        yield f"{arch}-factors", arch, "F32", base, TOKENS, 0
        yield f"{arch}-factors-far", arch, "F32", base, 300, 300 - TOKENS
    for arch in ("llama", "qwen3"):
        base = ["--arch", arch, "--preset", "tiny", "--vocab", "320", "--tied"]
        yield f"{arch}-tied", arch, "F32", base + ["--type", "F32"], TOKENS, 0
        yield f"{arch}-tied-Q6_K", arch, "Q6_K", base + ["--type", "Q6_K"], TOKENS, 0
    base = ["--arch", "gemma2", "--preset", "tiny", "--vocab", "320", *LAYERS["gemma2"]]
    for dtype in "F32", "Q4_K":  # caps that change most scores and logits
        yield f"gemma2-caps-{dtype}", "gemma2", dtype, base + ["--type", dtype, "--attn-cap", "1", "--logit-cap", "3"], TOKENS, 0
    yield from basic(("gemma2",))
    # Experts. Decoding a dtype is the same as above, so not all of them.
    mixtral = ["--arch", "llama", "--preset", "tiny", "--vocab", "320", "--experts", "8"]
    for dtype in "F32", "F16", "Q4_K", "Q8_0":
        yield f"mixtral-{dtype}", "llama", dtype, mixtral + ["--type", dtype], TOKENS, 0
    yield "mixtral-mixed", "llama", "mixed", mixtral + MIXED, TOKENS, 0
    qwen = ["--arch", "qwen3moe", "--preset", "tiny", "--vocab", "320"]
    for dtype in "F32", "BF16", "Q4_0", "Q4_K", "Q6_K", "Q8_0", "IQ4_XS", "MXFP4":
        yield f"qwen3moe-{dtype}", "qwen3moe", dtype, qwen + ["--type", dtype], TOKENS, 0
    yield "qwen3moe-mixed", "qwen3moe", "mixed", qwen + MIXED, TOKENS, 0
    yield "qwen3moe-many", "qwen3moe", "F32", qwen + ["--type", "F32", "--experts", "64", "--experts-used", "8"], TOKENS, 0
    yield "qwen3moe-far", "qwen3moe", "F32", qwen + ["--type", "F32"], 300, 300 - TOKENS
    oss = ["--arch", "gpt-oss", "--preset", "tiny", "--vocab", "320", "--layers", "4", "--window", "128", "--ctx", "131072"]
    for dtype in "F32", "F16", "Q4_K", "Q8_0", "MXFP4":
        yield f"gpt-oss-{dtype}", "gpt-oss", dtype, oss + ["--type", dtype], TOKENS, 0
    for dtype in "Q8_0", "F16":  # as published, and with all else in floats
        yield f"gpt-oss-published-{dtype}", "gpt-oss", "mixed", oss + ["--type", dtype, "--type-of", "_exps.weight=MXFP4"], TOKENS, 0
    yield "gpt-oss-far", "gpt-oss", "F32", oss + ["--type", "F32", "--window", "40"], 300, 300 - TOKENS
    yield "gpt-oss-heads", "gpt-oss", "F32", oss + ["--type", "F32", "--embd", "320", "--heads", "8", "--kv-heads", "1", "--head-dim", "80"], TOKENS, 0
    olmoe = ["--arch", "olmoe", "--preset", "tiny", "--vocab", "320", "--kv-heads", "4", "--ff", "256"]
    for dtype in "F32", "Q4_K", "Q8_0":
        yield f"olmoe-{dtype}", "olmoe", dtype, olmoe + ["--type", dtype], TOKENS, 0
    yield "olmoe-mixed", "olmoe", "mixed", olmoe + MIXED, TOKENS, 0


def peer_logits(path, ids):
    try:
        import llama_cpp
    except ImportError:
        return None
    size = max(64, len(ids) + 8)
    m = llama_cpp.Llama(path, n_ctx=size, n_batch=size, logits_all=True, verbose=False, n_threads=2)
    m.eval([int(i) for i in ids])
    return np.array(m.scores[:len(ids)], dtype=np.float64)


def clear_ids(path, seed, n, least):
    """Tokens whose experts all lead by `least`; drawn anew one by one where they do not."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 320, n).astype(np.int32)
    for _ in range(400):
        close = reference.forward(path, ids, columns=[0], margin=True)[1] < least
        if not np.any(close):
            return ids
        ids[close] = rng.integers(0, 320, int(np.sum(close)))
    raise SystemExit(f"{path}: no tokens found whose experts are clear")


def peer_error(path, ids, columns, first, arch):
    """Of gpt-oss against what the peer means to compute: it rounds the ends of YaRN's ramp, which the model's own code does not."""
    got = peer_logits(path, ids)
    if got is None:
        return None
    want = reference.forward(path, ids, columns=columns, bug="ramp_rounded" if arch == "gpt-oss" else None)
    return reference.nmse(got[first:, columns], want[first:])


def tolerance_of(dtype, peer):
    if dtype in FLOATS:
        return 1e-11
    return min(1e-3, 1.1 * peer) if peer is not None else 1e-3


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for part in iter(lambda: f.read(1 << 20), b""):
            h.update(part)
    return h.hexdigest()


class Store:
    def __init__(self):
        self.parts, self.bytes = [], 0

    def put(self, a):
        raw = np.ascontiguousarray(a).tobytes()
        self.parts.append(raw)
        self.bytes += len(raw)
        return self.bytes - len(raw)


def tiny(build, store, tmp, only):
    out = []
    for seed, (name, arch, dtype, args, n, first) in enumerate(specs(), start=100):
        if only and not re.match(only, name):
            continue
        path = os.path.join(tmp, "model.gguf")
        args = args + ["--seed", str(seed)]
        subprocess.run([os.path.join(build, "tests", "mkmodel"), *args, "-o", path], check=True)
        ids = clear_ids(path, seed, n, FLOAT_MARGIN if dtype in FLOATS else MARGIN)
        columns = np.sort(np.random.default_rng(seed + 1000).choice(320, COLUMNS, replace=False))
        want = reference.forward(path, ids, columns=columns)[first:]
        # The peer takes a magnitude of 1 where phi3's key is absent; the model's own code computes it.
        peer = None if name.startswith("phi3-factors") else peer_error(path, ids, columns, first, arch)
        bugs, known = {}, reference.BUGS
        if "expert" in " ".join(args) or arch in ("qwen3moe", "gpt-oss", "olmoe"):
            known += reference.EXPERT_BUGS + (reference.OSS_BUGS if arch == "gpt-oss" else ())
        for bug in known:
            if dtype in BUGGY and (bug != "q4_k_minimum" or dtype == "Q4_K"):
                bugs[bug] = reference.nmse(reference.forward(path, ids, bug=bug, columns=columns)[first:], want)
        out.append({"name": name, "arch": arch, "dtype": dtype, "args": args, "sha256": sha256(path),
                    "tokens": ids.tolist(), "first": first, "columns": columns.tolist(), "at": store.put(want.astype(np.float32)),
                    "peer_nmse": peer, "tolerance": tolerance_of(dtype, peer), "bugs": bugs})
        print(name, peer, {k: f"{v:.2g}" for k, v in bugs.items()}, flush=True)
    return out


def real(label, path, store):
    import llama_cpp
    m = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    ids = np.array(m.tokenize(TEXT.encode(), add_bos=label == "gemma3", special=False)[:REAL_TOKENS], dtype=np.int32)
    want = reference.forward(path, ids)
    columns = np.sort(np.random.default_rng(1).choice(want.shape[1], REAL_COLUMNS, replace=False))
    peer = reference.nmse(peer_logits(path, ids)[:, columns], want[:, columns])
    print(label, len(ids), "tokens", peer, flush=True)
    top = np.sort(want, axis=1)[:, -2:]
    return {"name": label, "sha256": sha256(path), "tokens": ids.tolist(), "first": 0, "columns": columns.tolist(),
            "argmax": want.argmax(axis=1).tolist(), "lead": np.round(top[:, 1] - top[:, 0], 4).tolist(),
            "at": store.put(want[:, columns].astype(np.float32)), "peer_nmse": peer, "tolerance": 1.1 * peer}


def keep(store, manifest, but):
    """What is there already, but those made anew."""
    with open(os.path.join(HERE, "logits.json")) as f:
        old = json.load(f)
    with open(os.path.join(HERE, "logits.bin"), "rb") as f:
        data = f.read()
    manifest["models"] = [m for m in old["models"] if not re.match(but, m["name"])]
    manifest["real"] = old["real"]
    for m in manifest["models"] + manifest["real"]:
        count = (len(m["tokens"]) - m["first"]) * len(m["columns"])
        m["at"] = store.put(np.frombuffer(data, np.float32, count, m["at"]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--smollm2")
    p.add_argument("--gemma3")
    p.add_argument("--only")
    a = p.parse_args()
    store, manifest = Store(), {"version": VERSION}
    if a.only:
        keep(store, manifest, a.only)
    with tempfile.TemporaryDirectory() as tmp:
        made = tiny(a.build, store, tmp, a.only)
    if a.only:
        manifest["models"] += made
    else:
        manifest["models"] = made
        manifest["real"] = [real(k, path, store) for k, path in (("smollm2", a.smollm2), ("gemma3", a.gemma3)) if path]
    with open(os.path.join(HERE, "logits.bin"), "wb") as f:
        f.write(b"".join(store.parts))
    with open(os.path.join(HERE, "logits.json"), "w") as f:
        f.write('{"version": %d,\n"models": [\n' % VERSION)
        f.write(",\n".join(json.dumps(m) for m in manifest["models"]))
        f.write('\n],\n"real": [\n')
        f.write(",\n".join(json.dumps(m) for m in manifest["real"]))
        f.write("\n]}\n")
    print(store.bytes, "bytes")


if __name__ == "__main__":
    sys.exit(main())
