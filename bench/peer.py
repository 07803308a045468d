#!/usr/bin/env python3
"""Lowtide beside llama.cpp: same model, same machine, same threads, same run.

    bench/peer.py BUILD MODEL.gguf [--threads N] [--what speed,first,perplexity] [--text FILE]

Needs the Python package llama-cpp-python, built from its source for this machine:
    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

speed       prefill of 512 and decode of 64 tokens at depth 0 and after 512, interleaved runs, best of each
first       seconds from start to the first token of a short prompt; page cache warm, and cold where this is root.
            Ours counts the whole process; theirs starts after its imports, which favours it.
perplexity  of the same tokens in windows of 512
"""
import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import time

try:
    import llama_cpp
    import numpy as np
except ImportError as e:
    sys.exit(f"{e}: pip install llama-cpp-python numpy (see the head of this file)")

DEPTH, GENERATE, WINDOW = 512, 64, 512
ap = argparse.ArgumentParser()
ap.add_argument("build")
ap.add_argument("model")
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--what", default="speed,first")
ap.add_argument("--text")
ap.add_argument("--runs", type=int, default=3)
args = ap.parse_args()
lowtide = os.path.join(args.build, "lowtide")


def ours(*opts):
    r = subprocess.run([lowtide, *map(str, opts)], capture_output=True, text=True, check=False)
    if r.returncode:
        sys.exit(f"lowtide {opts}: {r.stderr}")
    return r.stdout


def open_peer(ctx=2048, batch=512):
    return llama_cpp.Llama(args.model, n_ctx=ctx, n_batch=batch, n_ubatch=batch, n_threads=args.threads,
                           n_threads_batch=args.threads, verbose=False, logits_all=False)


def peer_decode(llm, ids):
    arr = (llama_cpp.llama_token * len(ids))(*ids)
    if llama_cpp.llama_decode(llm._ctx.ctx, llama_cpp.llama_batch_get_one(arr, len(ids))) != 0:
        sys.exit("llama_decode failed")
    return llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)


def peer_clear(llm):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm._ctx.ctx), True)


def peer_speed(llm):
    n_vocab = llm.n_vocab()
    ids = [(i * 7919 + 13) % n_vocab for i in range(DEPTH + GENERATE)]
    out = {}
    peer_clear(llm)
    t = time.perf_counter()
    peer_decode(llm, ids[:DEPTH])
    out["prefill"] = DEPTH / (time.perf_counter() - t)
    t = time.perf_counter()
    for i in ids[DEPTH:]:
        peer_decode(llm, [i])
    out["decode deep"] = GENERATE / (time.perf_counter() - t)
    peer_clear(llm)
    peer_decode(llm, ids[:1])
    t = time.perf_counter()
    for i in ids[1:GENERATE + 1]:
        peer_decode(llm, [i])
    out["decode"] = GENERATE / (time.perf_counter() - t)
    return out


def our_speed():
    j = json.loads(ours("bench", args.model, "-t", args.threads, "--prompt-tokens", DEPTH, "-n", GENERATE, "--depth", f"0,{DEPTH}",
                        "-c", 2048, "-b", 512, "-r", 1, "--json", "-q"))
    out = {}
    for r in j["results"]:
        name = r["test"] + (" deep" if r["depth"] else "")
        if name in ("prefill", "decode", "decode deep"):
            out[name] = (r["tps"], r["of_floor"])
    return out


def speed():
    llm = open_peer()
    best_peer, best_ours, share = {}, {}, {}
    for _ in range(args.runs):
        for k, v in peer_speed(llm).items():
            best_peer[k] = max(v, best_peer.get(k, 0))
        for k, (v, f) in our_speed().items():
            if v > best_ours.get(k, 0):
                best_ours[k], share[k] = v, f
    for k in ("prefill", "decode", "decode deep"):
        print(f"{k:12} lowtide {best_ours[k]:9.1f} tok/s  llama.cpp {best_peer[k]:9.1f}  ratio {best_ours[k] / best_peer[k]:.2f}"
              f"  of floor {share[k]:.0%}")


def first():
    code = ("import sys,time,llama_cpp\nt=time.perf_counter()\n"
            f"l=llama_cpp.Llama({args.model!r},n_ctx=2048,n_threads={args.threads},n_threads_batch={args.threads},verbose=False)\n"
            "next(iter(l.create_completion('The capital of France is',max_tokens=1,temperature=0,stream=True)))\n"
            "print(time.perf_counter()-t)")
    for cold in ([False, True] if os.geteuid() == 0 else [False]):
        best = [1e9, 1e9]
        for _ in range(args.runs + 1):
            for which in (0, 1):
                if cold:
                    subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches; cat " + lowtide + " >/dev/null", shell=True, check=False)
                if which == 0:
                    t = time.perf_counter()
                    ours("run", args.model, "-p", "The capital of France is", "-n", 1, "--temp", 0, "-c", 2048, "-t", args.threads, "-q")
                    t = time.perf_counter() - t
                else:
                    t = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-1])
                best[which] = min(best[which], t)
        print(f"first token, page cache {'cold' if cold else 'warm'}: lowtide {best[0]:.3f} s  llama.cpp {best[1]:.3f} s"
              f"  ratio {best[0] / best[1]:.2f}")


def perplexity():
    if not args.text:
        sys.exit("--what perplexity needs --text FILE")
    j = json.loads(ours("score", args.model, "-f", args.text, "-c", WINDOW, "-t", args.threads, "--json", "-q"))
    ids = json.loads(ours("tokenize", args.model, "-f", args.text, "--json"))["tokens"]
    llm = open_peer(WINDOW, 64)
    nll, counted, n_vocab = 0.0, 0, llm.n_vocab()
    for base in range(0, len(ids), WINDOW):
        window = ids[base:base + WINDOW]
        peer_clear(llm)
        for at in range(0, len(window), 64):
            part = window[at:at + 64]
            batch = llama_cpp.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, tok in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = tok, at + i, 1, 0, 1
            if llama_cpp.llama_decode(llm._ctx.ctx, batch) != 0:
                sys.exit("llama_decode failed")
            p = llama_cpp.llama_get_logits(llm._ctx.ctx)
            rows = np.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), (len(part), n_vocab)).astype(np.float64)
            top = rows.max(axis=1)
            logz = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            for i in range(len(part)):
                nxt = base + at + i + 1
                if nxt < len(ids):
                    nll += logz[i] - rows[i, ids[nxt]]
                    counted += 1
            llama_cpp.llama_batch_free(batch)
    ppl = math.exp(nll / counted)
    print(f"perplexity over {counted} tokens: lowtide {j['perplexity']:.5f}  llama.cpp {ppl:.5f}  difference {j['perplexity'] / ppl - 1:+.3%}")
    if counted != j["scored"]:
        sys.exit(f"counted {counted}, lowtide {j['scored']}")


print(f"{os.path.basename(args.model)}, {args.threads} threads, llama-cpp-python {llama_cpp.__version__}")
for w in args.what.split(","):
    {"speed": speed, "first": first, "perplexity": perplexity}[w]()
