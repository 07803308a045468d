#!/usr/bin/env python3
"""Weights read in place: single tokens copy nothing and answer the same; prompts stream; what cannot be mapped is refused or streamed."""
import filecmp
import json
import resource

from cli_common import expect, fail, load, lt, model, path

soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard)) # 8 MiB at least on any system of today
m = model("m.gguf", layers=4, type="F16")
BASE = "sim:vram=64M,threads=2,poison=on"


def run(how, device=BASE, *more, n=12, code=0):
    r = lt("run", m, "-p", "the tide goes out", "-n", n, "--temp", 0, "--ctx", 300, "--device", device, "--vram", "2500K", "--offload", how,
           "--profile", path("p.json"), "--report", path("r.json"), *more, code=code)
    return r, (load(path("r.json")) if code == 0 else None)


streamed, mapped = run("stream")[1], run("mapped")[1]
expect(streamed["tokens"] == mapped["tokens"] and len(mapped["tokens"]) == 12, f"{streamed['tokens']} and {mapped['tokens']}")
plan = mapped["plan"]
expect(plan["mapped_bytes"] == plan["streamed_bytes"] > 2 << 20 and plan["mapped_items"] == plan["streamed_items"], f"nothing mapped: {plan}")
expect(mapped["peak_bytes"] <= mapped["budget_bytes"], "over the budget")
# 11 passes of one token after the prompt's.
expect(mapped["moved"]["mapped_bytes"] == 11 * plan["mapped_bytes"], f"read in place: {mapped['moved']}")
expect(mapped["moved"]["weights_after_first_pass_bytes"] == 0, f"copied beside: {mapped['moved']}")
expect(streamed["moved"]["mapped_bytes"] == 0 and streamed["moved"]["weights_after_first_pass_bytes"] > 5 * plan["mapped_bytes"], "streaming streams no more")

for how in "stream", "mapped":
    lt("score", m, "-p", "the tide goes out and comes back again", "-c", 256, "--device", BASE, "--vram", "2500K", "--offload", how, "--logits", path(how + ".npy"))
expect(filecmp.cmp(path("stream.npy"), path("mapped.npy"), shallow=False), "other logits")

# Where the link bounds, a token is expected to take what its bytes take over it.
r = lt("plan", m, "--device", BASE + ",h2d=64M", "--vram", "2500K", "--ctx", 300, "--offload", "mapped", "--json", "--profile", path("p.json"))
plan = json.loads(r.stdout)
rate = plan["predicted_decode_tps"] * plan["mapped_bytes"]
expect(0.9 * (64 << 20) < rate <= 64 << 20 and plan["decode_bound"] == "link", f"{rate:.4g} B/s of a link of 64 MiB/s, bound by {plan['decode_bound']}")

plan = lt("plan", m, "--device", BASE, "--vram", "2500K", "--offload", "mapped", "--items", "--profile", path("p.json")).stdout
expect("mapped  " in plan and "reads the streamed" in plan, f"the plan says nothing of it:\n{plan[-600:]}")
whole = lt("run", m, "-p", "a", "-n", 3, "--temp", 0, "--device", BASE, "--offload", "mapped", "--report", path("r.json"))
expect(load(path("r.json"))["moved"]["mapped_bytes"] == 0, "all is resident, and still read in place")

# A refusal to lock costs speed, never the answer, and is said.
for n in 1, 2, 3:
    r, report = run("mapped", BASE + f",fail=pin:{n}")
    expect(report["tokens"] == streamed["tokens"], f"the {n}th pin fails: another answer")
    if report["moved"]["mapped_bytes"] == 0:
        expect("streamed instead" in r.stderr, f"a silent fallback: {r.stderr[-600:]}")
        break
else:
    fail("no pin of the first three was the mapping's")

r = lt("run", m, "-p", "a", "-n", 3, "--offload", "mapped", "--device", "cpu", code=2)
expect("offload mapped" in r.stderr and "stream" in r.stderr, r.stderr)
r = lt("run", m, "-p", "a", "-n", 3, "--offload", "often", code=2)
expect("--offload often: expected stream or mapped" in r.stderr, r.stderr)


def tight():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))


r = lt("run", m, "-p", "a", "-n", 3, "--device", BASE, "--vram", "2500K", "--offload", "mapped", "--profile", path("p.json"), code=4, preexec_fn=tight)
expect("page-locked" in r.stderr and "leave it at stream" in r.stderr, r.stderr)
print("mapped: ok")
