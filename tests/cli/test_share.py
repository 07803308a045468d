#!/usr/bin/env python3
"""Several Lowtide processes on one (simulated) card, in any order: each gets room, the card is never overrun (the device
would refuse), the answers are those of a run alone, and what leaves or is killed is taken back."""
import os
import signal
import subprocess
import time

from cli_common import expect, fail, load, lowtide, lt, model, path, tmp

os.environ["LOWTIDE_SHARED_DIR"] = path("share")
m = model("m.gguf", layers=6, embd=512, ff=1024, heads=8, kv_heads=4, type="F16", ctx=8192, vocab=4000)  # some 28 MB
os.environ["LOWTIDE_SHARED_DIR"] = path("share")
card = path("card")
DEV = f"sim:vram=40M,h2d=2G,latency=5us,poison=off,threads=1,card={card}"
prof = path("prof.json")


def words(tag, prompt, n, *more):
    return [lowtide, "run", m, "-p", prompt, "-n", str(n), "--temp", "0", "--ctx", "600", "--device", DEV, "--profile", prof,
            "--report", path(tag + ".json"), *more]


def start(tag, prompt, n, *more):
    err = open(path(tag + ".err"), "w", encoding="utf-8")
    p = subprocess.Popen(words(tag, prompt, n, *more), stdout=subprocess.PIPE, stderr=err)
    p.tag = tag
    return p


def end(p, code=0):
    out = p.communicate(timeout=120)[0]
    text = open(path(p.tag + ".err"), encoding="utf-8").read()
    expect(p.returncode == code, f"{p.tag}: exit {p.returncode}, expected {code}\n{text[-1500:]}")
    return out, text


def wait_for_text(p):
    expect(p.stdout.read(1), f"{p.tag}: no text: {open(path(p.tag + '.err'), encoding='utf-8').read()[-800:]}")


def tokens(tag):
    return load(path(tag + ".json"))["tokens"]


def whys(tag):
    return [c["why"] for c in load(path(tag + ".json"))["budget_changes"]]


# Alone: what each says.
end(start("a0", "one", 500))
end(start("b0", "two", 60))
alone = load(path("a0.json"))
expect(not alone["budget_changes"], "a run alone changed its budget")
expect(alone["plan"]["streamed_bytes"] == 0, "the model does not fit alone: the test means nothing")

# case memory 20: the second comes while the first has all; the first grows back when it leaves.
a = start("a", "one", 500)
wait_for_text(a)
b = start("b", "two", 60)
end(b)
end(a)
expect(tokens("a") == tokens("a0") and tokens("b") == tokens("b0"), "sharing changed an answer")
expect(whys("a")[0] == "another Lowtide asked", f"the first did not give way to a wish: {whys('a')}")
expect("relief" in whys("a"), f"the first did not grow back: {whys('a')}")
expect(load(path("b.json"))["budget_bytes"] + load(path("a.json"))["budget_changes"][0]["to"] <= 40 << 20, "more than the card")

# case memory 20: started together, any of them may be first.
for round in range(3):
    ps = [start(f"c{i}", p, 40) for i, p in enumerate(("one", "two", "three"))]
    for p in ps:
        end(p)
    expect(tokens("c0") == tokens("a0")[:40] and tokens("c1") == tokens("b0")[:40], "sharing changed an answer")

# Killed: its share is free again, its record is swept.
a = start("a", "one", 500)
wait_for_text(a)
b = start("b", "two", 500)
wait_for_text(b)
b.kill()
b.wait()
end(a)
expect(tokens("a") == tokens("a0"), "a neighbour's death changed an answer")
expect("relief" in whys("a"), f"the room of a killed process was not taken back: {whys('a')}")

# Stopped while it holds the room: nobody waits for it for ever; a floor is not gone below; who holds what is said.
a = start("a", "one", 500, "--vram-floor", "30M")
wait_for_text(a)
a.send_signal(signal.SIGSTOP)
t0 = time.monotonic()
_, text = end(start("b", "two", 10, "--wait", "0.5"), code=4)
expect(time.monotonic() - t0 < 20, "the wait had no end")
expect(f"process {a.pid}" in text and "m.gguf" in text, f"who holds the card is not said: {text}")
a.send_signal(signal.SIGCONT)
_, text = end(start("b", "two", 60, "--wait", "20"))
end(a)
expect(tokens("a") == tokens("a0") and tokens("b") == tokens("b0"), "sharing changed an answer")
expect(all(c["to"] >= 30 << 20 for c in load(path("a.json"))["budget_changes"]), "less than the floor was given back to")

# A card too full even for a context: the first makes room for that too.
full, DEV = DEV, DEV + ",fixed=5M"
a = start("a", "one", 500)
wait_for_text(a)
_, text = end(start("b", "two", 60))
end(a)
expect(tokens("a") == tokens("a0") and tokens("b") == tokens("b0"), "sharing changed an answer")
expect(whys("a")[0] == "another Lowtide asked", f"no room for a context was made: {whys('a')}")
DEV = full

# A damaged ledger is begun anew by the next that opens it; who was in it is again within a second.
ledger, = [os.path.join(path("share"), f) for f in os.listdir(path("share")) if f.endswith(".ledger")]
a = start("a", "one", 500)
wait_for_text(a)
with open(ledger, "r+b") as f:
    f.write(os.urandom(os.path.getsize(ledger)))
start("b", "two", 10).communicate()
time.sleep(1.3)
_, text = end(start("b", "two", 60))
end(a)
expect("another Lowtide process is on this card" in text, f"the other was not seen after the damage: {text}")
expect(tokens("a") == tokens("a0"), "a damaged ledger changed an answer")
expect(tokens("b") == tokens("b0"), "a damaged ledger changed an answer")

# No place for a ledger: one warning, and no sharing.
os.environ["LOWTIDE_SHARED_DIR"] = "/proc/1/nowhere"
_, text = end(start("b", "two", 60))
expect(text.count("will not be seen") == 1, f"one warning was expected: {text}")
expect(tokens("b") == tokens("b0"), "without a ledger another answer came")
print("share: ok")
