#!/usr/bin/env python3
"""Each command does what its help says: results, formats, reproducibility, files, completion, manual."""
import array
import json
import math
import os
import re
import shutil
import struct
import subprocess

from cli_common import build, expect, lowtide, lt, load, mkmodel, model, path, tmp

m = model("m.gguf")
rep, npy, trace = path("r.json"), path("l.npy"), path("t.trace")
PROMPT = "The tide goes out, and the tide comes in."


def run(*opts, **kw):
    return json.loads(lt("run", m, "-p", PROMPT, "--json", "-q", *opts, **kw).stdout)


# run: the report by exact names, the same on stdout and in the file.
a = run("-n", 20, "--temp", 0, "--report", rep)
b = load(rep)
expect(a == b, "--json and --report differ")
for name in ("device", "memory_mode", "managed_host_peak_bytes", "budget_bytes", "fixed_bytes", "peak_bytes", "host_peak_bytes", "plan", "moved", "prefill", "decode", "tokens", "text"):
    expect(name in b, f"report: no {name}")
for name in ("resident_bytes", "streamed_bytes", "host_bytes", "ring_bytes", "activation_bytes", "kv_bytes", "predicted_peak_bytes",
             "predicted_prefill_tps", "predicted_decode_tps"):
    expect(isinstance(b["plan"][name], (int, float)), f"report: no plan.{name}")
for name in ("h2d_bytes", "d2h_bytes", "disk_bytes", "stall_seconds"):
    expect(b["moved"][name] >= 0, f"report: no moved.{name}")
for phase in ("prefill", "decode"):
    for name in ("tokens", "seconds", "tps", "floor_tps"):
        expect(b[phase][name] > 0, f"report: {phase}.{name} is {b[phase].get(name)}")
expect(b["peak_bytes"] <= b["budget_bytes"] and b["host_peak_bytes"] > 1 << 20, "report: peaks")
expect(len(b["tokens"]) == 20 and b["prefill"]["tokens"] == b["prefill"]["tokens"] and b["decode"]["tokens"] == 19, "report: counts")
expect(b["plan"]["ctx"] == b["prefill"]["tokens"] + 20, f"run plans a context of {b['plan']['ctx']}: more than is used")

# Greedy is reproducible; so is a seed; another seed is another answer; text is what the tokens say.
expect(run("-n", 20, "--temp", 0)["tokens"] == a["tokens"], "greedy: other tokens")
expect(run("-n", 20, "--temp", 0, "--seed", 5, "--top-k", 3)["tokens"] == a["tokens"], "greedy: a seed matters")
expect(run("-n", 20, "--top-k", 1)["tokens"] == a["tokens"], "--top-k 1 is not greedy")
expect(run("-n", 20, "--min-p", 0.999)["tokens"] == a["tokens"], "--min-p 0.999 is not greedy")
s1, s2, s3 = run("-n", 20, "--seed", 1), run("-n", 20, "--seed", 1, "-t", 1), run("-n", 20, "--seed", 2)
expect(s1["tokens"] == s2["tokens"] and s1["seed"] == 1 and s1["tokens"] != s3["tokens"], "seeds")
expect(run("-n", 20)["seed"] != run("-n", 20)["seed"], "without --seed: the same seed twice")
expect(run("-n", 40, "--temp", 0, "--repeat-penalty", 5)["tokens"] != run("-n", 40, "--temp", 0)["tokens"], "--repeat-penalty has no effect")
r = lt("run", m, "-p", PROMPT, "-n", 20, "--temp", 0)
expect(r.stdout.rstrip("\n") == a["text"].rstrip("\n"), f"text {r.stdout!r} is not {a['text']!r}")
for line in ("model ", "budget ", "arena ", "expect ", "peak ", "prefill ", "decode ", "moved "):
    expect(re.search(f"^{line}", r.stderr, re.M), f"run: no line '{line}' on stderr")
expect(lt("run", m, "-p", PROMPT, "-n", 5, "-q", "--temp", 0).stderr == "", "-q speaks")
with open(path("p.txt"), "w") as f:
    f.write(PROMPT)
expect(json.loads(lt("run", m, "-f", path("p.txt"), "-n20", "--temp=0", "--json", "-q").stdout)["tokens"] == a["tokens"], "--file")
expect(json.loads(lt("run", m, "-f", "-", "-n", 20, "--temp", 0, "--json", "-q", stdin=PROMPT).stdout)["tokens"] == a["tokens"], "--file -")
sim = run("-n", 20, "--temp", 0, "--device", "sim:vram=64M,h2d=4G", "--vram", "1600K", "--trace", trace)
expect(sim["tokens"] == a["tokens"] and sim["plan"]["streamed_bytes"] > 0 and sim["moved"]["h2d_bytes"] > 0, "sim: other tokens")
expect(run("-n", 3, "--temp", 0, "--check-finite")["tokens"] == a["tokens"][:3], "--check-finite")
for kv in ("f16", "F32", "q8_0"):
    expect(run("-n", 3, "--temp", 0, "--kv", kv)["plan"]["kv_dtype"].lower() == kv.lower(), f"--kv {kv}")

# Streaming: the first text is there long before the end.
p = subprocess.Popen([lowtide, "run", m, "-p", PROMPT, "-n", "900", "--temp", "0", "-q"], stdout=subprocess.PIPE)
first = os.read(p.stdout.fileno(), 4096)
rest = p.stdout.read()
expect(p.wait(60) == 0 and 0 < len(first) < len(rest) / 4, f"no streaming: {len(first)} bytes at first, {len(rest)} later")

# tokenize, both ways.
ids = json.loads(lt("tokenize", m, "-p", PROMPT, "--json").stdout)
expect(list(ids) == ["tokens"] and all(isinstance(i, int) for i in ids["tokens"]), f"tokenize: {ids}")
listed = ",".join(map(str, ids["tokens"]))
expect(lt("tokenize", m, "-d", listed).stdout == PROMPT, "tokenize: the way back")
expect(lt("tokenize", m, "-d", "-", stdin=f"[{listed.replace(',', ', ')}]\n").stdout == PROMPT, "tokenize: the way back from stdin")
expect(json.loads(lt("tokenize", m, "-d", listed, "--json").stdout) == {"text": PROMPT}, "tokenize: the way back as JSON")
special = "<|im_start|>x"
with_, without = (json.loads(lt("tokenize", m, "-p", special, "--json", *o).stdout)["tokens"] for o in ([], ["--no-special"]))
expect(len(with_) < len(without) and lt("tokenize", m, "-d", ",".join(map(str, without))).stdout == special, f"--no-special: {with_} {without}")
expect(lt("tokenize", m, "-p", PROMPT).stdout.count("\n") == len(ids["tokens"]), "tokenize: a token a line")

# score: NumPy's file, and the perplexity that follows from it.
r = json.loads(lt("score", m, "-p", PROMPT, "--logits", npy, "--report", rep, "--json", "-q").stdout)
with open(npy, "rb") as f:
    data = f.read()
n = struct.unpack_from("<H", data, 8)[0]
head = eval(data[10:10 + n])
expect(data[:8] == b"\x93NUMPY\x01\x00" and (10 + n) % 64 == 0 and head["descr"] == "<f4" and not head["fortran_order"], f"npy: {head}")
expect(head["shape"] == (len(ids["tokens"]), 2000), f"npy: {head['shape']}")
rows = array.array("f", data[10 + n:])
nll = 0
for i, t in enumerate(ids["tokens"][1:]):
    row = rows[i * 2000:(i + 1) * 2000]
    nll += math.log(sum(math.exp(x - row[t]) for x in row))
expect(abs(nll / r["nll"] - 1) < 1e-6 and abs(math.exp(nll / (len(ids["tokens"]) - 1)) / r["perplexity"] - 1) < 1e-5, "score: perplexity")
expect(load(rep)["perplexity"] == r["perplexity"], "score: --report")
text = lt("score", m, "-p", PROMPT).stdout
expect(re.fullmatch(r"perplexity \d+\.\d+ over \d+ of \d+ tokens\n", text), text)
few = json.loads(lt("score", m, "-p", PROMPT * 9, "--json", "-q", "--device", "sim:vram=64M").stdout)
tight = json.loads(lt("score", m, "-p", PROMPT * 9, "--json", "-q", "--device", "sim:vram=64M", "--vram", few["plan"]["smallest_budget_bytes"]).stdout)
expect(few["nll"] == tight["nll"], "score: the perplexity depends on the budget")

# plan loads nothing; its items cover the weights.
p = json.loads(lt("plan", m, "--json", "--items", "--device", "sim:vram=64M", "--vram", "1600K").stdout)
expect(sum(i["bytes"] for i in p["item_list"]) == p["resident_bytes"] + p["streamed_bytes"], "plan --items")
expect({i["place"] for i in p["item_list"]} == {"resident", "streamed"} and p["reasons"], "plan: places")
expect("arena" in lt("plan", m).stdout, "plan: text on stdout")
expect(p["memory_mode"] == "device" and "; memory: device" in lt("plan", m, "--device", "sim:vram=64M", "--memory", "device").stdout, "plan: memory_mode")

# inspect, bench, doctor, replay.
j = json.loads(lt("inspect", m, "--json").stdout)
expect(j["keys"]["general.architecture"] == "llama" and len(j["keys"]["tokenizer.ggml.tokens"]) == 2000, "inspect --json")
expect(any(t["name"] == "blk.0.attn_q.weight" and t["type"] == "Q4_K" and t["shape"] == [256, 256] for t in j["tensors"]), "inspect: tensors")
t = lt("inspect", m, "--keys", "--tensors").stdout
expect("llama.block_count" in t and "blk.2.ffn_down.weight" in t and "30 tensors" in t, "inspect: text")
expect("experts" not in t, "inspect: experts of a dense model")
e = path("experts.gguf")
subprocess.run([mkmodel, "--arch", "gpt-oss", "--vocab", "320", "-o", e], check=True)
expect("architecture gpt-oss, name synthetic, 16 experts, 4 of them a token's" in lt("inspect", e).stdout, "inspect: experts")
j = json.loads(lt("bench", m, "--prompt-tokens", "8,16", "-n", 4, "--depth", "0,32", "-r", 2, "--json", "-q", "--report", rep).stdout)
expect([(x["test"], x["tokens"], x["depth"]) for x in j["results"]] ==
       [("prefill", 8, 0), ("prefill", 16, 0), ("decode", 4, 0), ("prefill", 8, 32), ("prefill", 16, 32), ("decode", 4, 32)], f"bench: {j['results']}")
expect(all(x["tps"] > 0 and x["floor_tps"] > 0 for x in j["results"]) and load(rep) == j, "bench: rates")
j = json.loads(lt("doctor", "--json").stdout)
expect(j["profile"]["memory_rate"] > 0 and j["profile"]["dot_rate"]["Q4_K"] > 0 and isinstance(j["problems"], list), "doctor --json")
expect(j["memory_mode"] == "host" and "; memory: host" in lt("doctor", "--memory", "device").stdout, "doctor: memory_mode")
expect("problem" in lt("doctor").stdout, "doctor")
# A made-up driver in the place of the system's: its card's link has eight lanes of sixteen.
lib = path("lib")
os.makedirs(lib)
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    os.symlink(os.path.join(os.path.abspath(build), "tests", "libcuda_fake.so"), os.path.join(lib, name))
j = json.loads(lt("doctor", "--json", env={**os.environ, "LD_LIBRARY_PATH": lib}).stdout)
said = {p["problem"]: p["remedy"] for p in j["problems"]}
if "driver 999.99" in j["gpu"]:
    expect("PCIe 1 x8 now, 4 x16 at best" in j["gpu"] and "kernels for sm_" in j["gpu"], f"doctor: {j['gpu']}")
    expect(any("8 lanes of 16" in p for p in said), f"doctor: the link: {said}")
elif "compute capability 8.9" in j["gpu"]:
    expect(any("compute capability 8.9" in p and "LT_CUDA_ARCHS" in r for p, r in said.items()), f"doctor: no kernel image: {said}")
else:
    expect("has no kernels" in j["gpu"], f"doctor: {j['gpu']}")
j = json.loads(lt("replay", trace, "--policy", "next-use", "--budget", "1600K", "--json").stdout)
expect(j["leases"] > 0 and j["peak_live_bytes"] > 0 and j["regret"] >= 0, f"replay: {j}")
expect(json.loads(lt("replay", trace, "--json").stdout)["smallest_arena_bytes"] >= j["peak_live_bytes"], "replay: smallest arena")

# Files: through a link, over an old one, with the usual mode.
open(path("real.json"), "w").close()
os.symlink(path("real.json"), path("link.json"))
for _ in range(2):
    run("-n", 2, "--report", path("link.json"))
expect(os.path.islink(path("link.json")) and load(path("real.json"))["tokens"], "--report replaced the link")
expect(os.stat(path("real.json")).st_mode & 0o777 == 0o644, "--report: mode")
expect(not [f for f in os.listdir(tmp) if ".tmp-" in f], "temporary files stay")

# Help, completion, manual: every command and option in each.
commands = re.findall(r"^  (\w+)  ", lt("help").stdout, re.M)
expect({"run", "plan", "inspect", "tokenize", "score", "bench", "doctor", "top", "pull", "replay", "completion", "man"} <= set(commands), f"{commands}")
script = path("lowtide.bash")
with open(script, "w") as f:
    f.write(lt("completion", "bash").stdout)


def complete(*words):
    code = f'source {script}; COMP_WORDS=({" ".join(words)!s}); COMP_CWORD={len(words) - 1}; _lowtide; printf "%s\\n" "${{COMPREPLY[@]}}"'
    if words[-1] == "''":
        code = code.replace("''", '""')
    return subprocess.run(["bash", "-uc", code], capture_output=True, text=True, check=True, cwd=tmp).stdout.split()


if shutil.which("bash"):
    expect(set(commands) <= set(complete("lowtide", "''")), f"completion: {complete('lowtide', chr(39) * 2)}")
    expect(complete("lowtide", "tok") == ["tokenize"], f"completion: {complete('lowtide', 'tok')}")
    expect(complete("lowtide", "run", "--rep") == ["--repeat-penalty", "--repeat-last", "--report"], f"{complete('lowtide', 'run', '--rep')}")
    expect("m.gguf" in complete("lowtide", "run", "m."), "completion: files")
    expect(complete("lowtide", "inspect", "--log") == [], "completion: an option of another command")
for shell, check in (("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])):
    out = lt("completion", shell).stdout
    expect(all(c in out for c in commands) and "repeat-penalty" in out, f"completion {shell}")
    if shutil.which(shell):
        subprocess.run(check, input=out, text=True, check=True)
for page in ("", *commands):
    text = lt("man", *([page] if page else [])).stdout
    options = set(re.findall(r"--([a-z][-a-z0-9]+)", "\n".join(re.findall(r"^  -.*?  |^      --\S+", lt("help", page).stdout, re.M)))) if page else set()
    expect(all(o.replace("-", "\\-") in text for o in options), f"man {page}: an option is missing")
    if shutil.which("groff"):
        r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, capture_output=True, text=True)
        expect(r.returncode == 0 and not r.stderr, f"man {page}: {r.stderr}")
# mkmodel: the types the card's bench uses, at true widths; --repeat has the same header, other weights, and works as well.
for kind in ("Q8_0", "MXFP4", "IQ4_XS", "F16"):
    files = [path("plain.gguf"), path("repeat.gguf")]
    for f, more in zip(files, ([], ["--repeat"])):
        subprocess.run([mkmodel, "--preset", "1b", "--layers", "2", "--vocab", "2000", "--type", kind, *more, "-o", f], check=True)
    expect(os.path.getsize(files[0]) == os.path.getsize(files[1]), f"{kind}: --repeat changes the size")
    shown = [json.loads(lt("inspect", f, "--json").stdout) for f in files]
    expect(shown[0]["tensors"] == [{**t, "file": files[0]} for t in shown[1]["tensors"]] and shown[0]["keys"] == shown[1]["keys"], f"{kind}: the header")
    plan = json.loads(lt("plan", files[1], "--device", "sim:vram=8G", "--vram", "48M", "--json").stdout)
    expect(plan["streamed_bytes"] > 0 and plan["predicted_peak_bytes"] <= 48 << 20, f"{kind}: {plan}")
    said = [json.loads(lt("run", f, "-p", "tide", "-n", 4, "--temp", 0, "--json", "-q").stdout)["tokens"] for f in files]
    expect(len(said[1]) == 4 and said[0] != said[1], f"{kind}: {said}")
print(f"{len(commands)} commands do what they say")
