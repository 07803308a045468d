#!/usr/bin/env python3
"""lowtide top sees every process of this user, by page and not by asking; what the dead left and what is no page is passed over."""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from cli_common import expect, fail, lowtide, lt, model, path

os.environ["LOWTIDE_SHARED_DIR"] = path("share")
m = model("m.gguf", ctx=32768, layers=8, embd=512, ff=2048, heads=8, kv_heads=4, type="F16")
lt("run", m, "-p", "x", "-n", 1, "--device", "sim:vram=64M,h2d=1G,threads=1", "--profile", path("p.json"))


def start(*more):
    p = subprocess.Popen([lowtide, "run", m, "-p", "some words", "-n", "4000", "--ctx", "4100", "--temp", "0", "--repeat-penalty", "0.5", "--profile", path("p.json"), *more],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    expect(p.stdout.read(1), "no text")
    return p


def seen():
    return json.loads(lt("top", "--json", "--interval", "0.4").stdout)["processes"]


expect(seen() == [], "somebody is seen where nobody runs")
expect("0 Lowtide processes" in lt("top", "--once").stdout, "nobody is not said")
a = start("--device", "sim:vram=64M,h2d=1G,threads=1", "--vram", "40M")
b = start("--device", "cpu:threads=1", "-n", "30000", "--ctx", "30100")  # outlives all below; rewarded repetition never comes to an end token

# The first character is the prompt's; on a busy machine the page may say so for a while yet.
end = time.monotonic() + 60
found = {w["pid"]: w for w in seen()}
while time.monotonic() < end and any(w["phase"] != "decode" or not w["tokens_per_second"] > 0 for w in found.values()):
    found = {w["pid"]: w for w in seen()}
expect(set(found) == {a.pid, b.pid}, f"{set(found)} were seen, {a.pid} and {b.pid} run")
w = found[a.pid]
expect(w["model"] == "m.gguf" and w["phase"] == "decode" and w["device"].startswith("sim"), f"what it does: {w}")
expect(w["budget_bytes"] == 40 << 20 and w["committed_bytes"] <= w["budget_bytes"] and w["card_bytes"] == 64 << 20, f"its memory: {w}")
expect(w["card_free_bytes"] == w["card_bytes"] - w["committed_bytes"], f"its card: {w}")
expect(sum(w["live_by_use"].values()) <= w["committed_bytes"] and w["live_by_use"]["weight"] > 0, f"its uses: {w}")
expect(w["streamed_bytes"] > 0 and w["h2d_per_second"] > 0 and w["tokens_per_second"] > 0, f"its rates: {w}")
expect(0 < sum(w["resident_map"]) < 255 * len(w["resident_map"]), "a model held in part shows all or nothing")
expect(found[b.pid]["streamed_bytes"] == 0 and set(found[b.pid]["resident_map"]) == {255}, "a resident model shows holes")
expect(seen()[0]["decode_tokens"] > 0 and w["length"] < seen()[0]["length"], "it stands still")
text = lt("top", "--once").stdout
expect("2 Lowtide processes" in text and f"{a.pid}" in text and "tok/s" in text and "map " in text, f"as text: {text}")

# Stopped: idle after a while, but there. Killed: gone, with its file.
a.send_signal(signal.SIGSTOP)
time.sleep(1.8)
expect({w["pid"]: w["phase"] for w in seen()}[a.pid] == "idle", "a stopped process is not idle")
a.send_signal(signal.SIGCONT)
a.kill()
a.wait()
expect([w["pid"] for w in seen()] == [b.pid], "a killed process is still seen")
expect(not [f for f in os.listdir(path("share")) if f.startswith(f"{a.pid}-")], "its file is still there")

# No pages.
for name, data in (("1-1.watch", b""), ("2-1.watch", os.urandom(100)), ("3-1.watch", os.urandom(4096)), ("4-1.watch", bytes(2000))):
    with open(os.path.join(path("share"), name), "wb") as f:
        f.write(data)
page, = [os.path.join(path("share"), f) for f in os.listdir(path("share")) if f.startswith(f"{b.pid}-")]
whole = open(page, "rb").read()
with open(os.path.join(path("share"), "5-1.watch"), "wb") as f:  # a page with odd bytes in it
    f.write(whole[:40] + os.urandom(len(whole) - 40))
os.symlink("/etc/passwd", os.path.join(path("share"), "6-1.watch"))
expect(b.pid in [w["pid"] for w in seen()], "rubbish beside it hides a process")
lt("top", "--once")

# In a terminal: lines come, q ends it, the terminal is as it was.
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(lowtide, ["lowtide", "top", "--interval", "0.1"])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 70, 0, 0))
out, end = b"", time.monotonic() + 20
while b"tok/s" not in out and time.monotonic() < end:
    if select.select([fd], [], [], 0.2)[0]:
        out += os.read(fd, 65536)
if b"without ncurses" not in out:
    expect(b"tok/s" in out, f"nothing is drawn: {out[-300:]}")
    os.write(fd, b"q")
    while select.select([fd], [], [], 5)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    expect(os.waitpid(pid, 0)[1] == 0, "q did not end it well")
    expect(b"\x1b[?1049l" in out or b"\x1b[2J" in out, "the terminal was left as it was drawn")
b.send_signal(signal.SIGINT)
b.communicate(timeout=30)
expect(seen() == [] or all(w["pid"] not in (a.pid, b.pid) for w in seen()), "who ended is still seen")
lt("top", code=2)  # no terminal
print("top: ok")
