#!/usr/bin/env python3
"""The budget never changes the answer: logits of real and synthetic models are the same bits at every
budget and batch, inside the budget, at the peak that was predicted; a budget too small is refused with
the bytes that are missing."""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

build = os.path.abspath(sys.argv[1])
lowtide, mkmodel = os.path.join(build, "lowtide"), os.path.join(build, "tests", "mkmodel")
TEXT = "The tide goes out because the Moon's pull is stronger on the near side. Naïve café 12345 ≠ 0x1F." # some 30 tokens


def lt(*args, code=0):
    r = subprocess.run([lowtide, *map(str, args)], capture_output=True, text=True, timeout=500)
    if r.returncode != code:
        sys.exit(f"lowtide {' '.join(map(str, args))}: exit {r.returncode}, expected {code}\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r


def score(model, tmp, *opts):
    npy, rep = os.path.join(tmp, "logits.npy"), os.path.join(tmp, "report.json")
    lt("score", model, "-p", TEXT, "-q", "--logits", npy, "--report", rep, *opts)
    with open(npy, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    with open(rep, encoding="utf-8") as f:
        return digest, json.load(f)


def check(name, model, tmp, ctx):
    dev = ["--device", "sim:vram=4G", "-c", ctx]
    want, rep = score(model, tmp, *dev)
    weights = rep["plan"]["weight_bytes"] - rep["plan"]["host_bytes"]
    plan = json.loads(lt("plan", model, *dev, "--json").stdout)
    least = plan["smallest_budget_bytes"]
    budgets = [("all", 0)] + [(f, max(int(weights * f), least)) for f in (0.75, 0.5, 0.25)] + [("least", least)]
    for label, budget in budgets:
        for batch in ([], ["-b", 7]) if label in ("all", 0.5) else ([],):
            if label == "all" and not batch:
                continue  # that was the reference
            got, rep = score(model, tmp, *dev, *(["--vram", budget] if budget else []), *batch)
            peak, predicted = rep["peak_bytes"], rep["plan"]["predicted_peak_bytes"]
            if got != want:
                sys.exit(f"{name} at {label} {batch}: other logits")
            if peak > rep["budget_bytes"] or abs(peak / predicted - 1) > 0.02:
                sys.exit(f"{name} at {label}: peak {peak}, budget {rep['budget_bytes']}, predicted {predicted}")
            if (label in (0.5, 0.25, "least")) > (rep["plan"]["streamed_bytes"] > 0):
                sys.exit(f"{name} at {label}: nothing is streamed")
            print(f"{name} at {label} {batch}: peak {peak} of {rep['budget_bytes']}, predicted {predicted}, "
                  f"streamed {rep['plan']['streamed_bytes']} a pass, same bits")
    r = lt("run", model, "-p", TEXT, "-n", 1, *dev, "--vram", least - 1, code=4)
    if not re.search(r"\b1 bytes .*missing", r.stderr):
        sys.exit(f"{name}: the refusal does not name the byte that is missing: {r.stderr}")
    print(f"{name}: least budget {least} bytes, {least / weights:.1%} of the weights' {weights}; one less is refused")
    if name == "smollm2" and least > weights / 4:
        sys.exit("smollm2: the least budget is over a quarter of the weights")


with tempfile.TemporaryDirectory() as tmp:
    os.environ["XDG_CACHE_HOME"] = tmp
    for arch in ("llama", "gemma2", "gemma3"):
        path = os.path.join(tmp, f"{arch}.gguf")
        # Weights well over the least arena, so that a quarter of them really streams.
        subprocess.run([mkmodel, "--arch", arch, "--layers", "8", "--embd", "512", "--ff", "1536", "--heads", "8", "--kv-heads", "2",
                        "--head-dim", "64", "--vocab", "2000", "--ctx", "1024", "--type", "Q4_K", "--seed", "3", "-o", path], check=True)
        check(f"synthetic {arch}", path, tmp, 256)
    for arch in ("gpt-oss", "qwen3moe"):
        path = os.path.join(tmp, f"{arch}.gguf")
        subprocess.run([mkmodel, "--arch", arch, "--layers", "6", "--embd", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--vocab", "2000",
                        "--ctx", "1024", "--experts", "16", "--experts-used", "4", "--expert-ff", "256", "--type", "Q8_0", "--type-of", "exps.weight=MXFP4",
                        "--seed", "3", "-o", path], check=True)
        check(f"synthetic {arch}", path, tmp, 256)
    for name in ("smollm2", "gemma3"):
        model = os.environ.get(f"LT_TEST_{name.upper()}")
        if not model:
            print(f"{name}: left out, LT_TEST_{name.upper()} names no file")
            continue
        check(name, model, tmp, 256)
