#!/usr/bin/env python3
"""A timeline is JSON that Perfetto reads: each queue does one thing at a time, and its bytes are the report's."""
import collections
import json
import os

from cli_common import expect, lt, load, model, path

os.environ["LOWTIDE_SHARED_DIR"] = path("share")
m = model("m.gguf", layers=4, type="F16")
SIM = "sim:vram=16M,h2d=1G,latency=5us,threads=1"


def run(device, *more):
    lt("run", m, "-p", 'a "quoted" word', "-n", 20, "--temp", 0, "--ctx", 300, "--device", device, "--profile", path("p.json"), "--trace",
       path("t.json"), "--report", path("r.json"), *more)
    with open(path("t.json"), encoding="utf-8") as f:
        return json.load(f), load(path("r.json"))


def check(events):
    for e in events:
        expect(e["ph"] in "MXibeC" and e["pid"] == 1 and isinstance(e["name"], str), f"no event: {e}")
        expect(e["ph"] == "M" or e["ts"] >= 0, f"no time: {e}")
        expect(e["ph"] != "X" or e["dur"] >= 0, f"no duration: {e}")
    for lane in (1, 2):
        last = 0
        for e in sorted((e for e in events if e["ph"] == "X" and e["tid"] == lane), key=lambda e: (e["ts"], e["dur"])):
            expect(e["ts"] >= last - 0.01, f"a queue does two things at once: {e}, the one before ends at {last}")
            last = e["ts"] + e["dur"]


events, report = run(SIM, "--vram", "3M")
check(events)
spans = [e for e in events if e["ph"] == "X"]
names = collections.Counter(e["name"] for e in spans if e["tid"] == 1)
expect(names["LINEAR"] > 20 * 4 * 7 and names["wait for copy"] > 0, f"what the compute queue ran: {names}")
expect(all(e["args"]["of"].startswith("blk.") for e in spans if e["name"] == "ATTENTION"), "a launch without its name")
moved = sum(e["args"]["bytes"] for e in spans if e["name"] == "copy in")
# The report is of a moment, the timeline goes on to the end: what was on its way then, at most what the ring holds, is in one of them only.
expect(0.99 * report["moved"]["h2d_bytes"] <= moved <= report["moved"]["h2d_bytes"] + report["plan"]["ring_bytes"],
       f"{moved} bytes in, the report says {report['moved']}")
use = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "arena by use"]
expect(max(u["weight"] for u in use) == report["memory"]["peak_by_use"]["weight"] and max(u["kv"] for u in use) > 0, "memory by use")
expect(all(v == 0 for v in use[-1].values()), f"something is left at the end: {use[-1]}")
expect([e for e in events if e["ph"] == "X" and e["name"] == "stall"], "no wait at 1 GiB/s")

events, report = run("cpu:threads=1", "--ram", "64M")
check(events)
reads = [e for e in events if e["ph"] == "b"]
expect(len(reads) == len([e for e in events if e["ph"] == "e"]), "a read without an end")
events, report = run(SIM + ",clock=virtual")
check(events)
lt("replay", path("t.json"), code=3)
print("timeline: ok")
