#!/usr/bin/env python3
"""Ctrl-C ends cleanly with the accounting; kill -9 at any moment leaves no half-written file; progress and
line editing happen on a terminal only."""
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time

from cli_common import expect, fail, load, lowtide, lt, mkmodel, model, path, tmp

m = model("m.gguf", ctx=8192)
lt("run", m, "-p", "x", "-n", 1)  # the profile is measured once, here


def interrupt(words, ready, sig=signal.SIGINT):
    """Starts, waits until `ready` says there is something to interrupt, sends the signal."""
    p = subprocess.Popen([lowtide, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ready(p)
    p.send_signal(sig)
    out, err = p.communicate(timeout=60)
    return p.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def first_text(p):
    p.stdout.read(20)


def sleep_for(seconds):
    return lambda p: time.sleep(seconds)


rep = path("r.json")
for sig in (signal.SIGINT, signal.SIGTERM):
    code, out, err = interrupt(["run", m, "-p", "hello", "-n", "8000", "-c", "8192", "--report", rep], first_text, sig)
    r = load(rep)
    expect(code == 130 and r["ended"] == "interrupted" and r["tokens"] and r["peak_bytes"] > 0, f"{sig}: {code} {r['ended']} {err[-300:]}")
    expect("peak    " in err and "decode  " in err and out.endswith("\n"), f"{sig}: no accounting: {err[-300:]}")
    os.remove(rep)
code, out, err = interrupt(["run", m, "-p", "hello", "-n", "8000", "-c", "8192", "--json", "-q"], sleep_for(1.5))
expect(code == 130 and json.loads(out)["ended"] == "interrupted", f"--json: {code} {out[-200:]} {err[-300:]}")

text = "the quick brown fox jumps over the lazy dog " * 400
with open(path("long.txt"), "w") as f:
    f.write(text)
npy = path("l.npy")


def npy_begun(p):
    end = time.time() + 30
    while time.time() < end and not any(f.startswith("l.npy.tmp") and os.path.getsize(path(f)) > 50000 for f in os.listdir(tmp)):
        time.sleep(0.005)


code, out, err = interrupt(["score", m, "-f", path("long.txt"), "--logits", npy, "--report", rep, "-b", "16"], npy_begun)
r = load(rep)
expect(code == 130 and r["ended"] == "interrupted" and 0 < r["scored"] < r["tokens"], f"score: {code} {err[-300:]}")
expect(not os.path.exists(npy) and not [f for f in os.listdir(tmp) if ".tmp-" in f], "score: an unfinished file stayed")
code, out, err = interrupt(["bench", m, "--prompt-tokens", "32", "-n", "2000", "-r", "20", "-c", "4096", "--report", rep], first_text)
expect(code == 130 and load(rep)["results"], f"bench: {code} {err[-300:]}")

# kill -9 at random moments: what is there under its final name is whole.
random.seed(7)
kills = 0


def is_whole_npy(name):
    with open(name, "rb") as f:
        head = f.read(128)
        rows, cols = map(int, re.search(rb"\((\d+), (\d+)\)", head).groups())
        return os.path.getsize(name) == 128 + rows * cols * 4


def kill_loop(words, n, longest, files):
    global kills
    for _ in range(n):
        for f, _check in files:
            if os.path.exists(f):
                os.remove(f)
        p = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.01, longest))
        p.kill()
        kills += p.wait() == -signal.SIGKILL
        for f, check in files:
            if os.path.exists(f):
                expect(check(f), f"{f}: half written after kill -9")


def took(words):
    t = time.time()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.time() - t


trace = path("t.trace")
words = [lowtide, "score", m, "-p", text[:800], "--logits", npy, "--report", rep, "--trace", trace, "-q"]
kill_loop(words, 14, took(words) * 1.2, [(npy, is_whole_npy), (rep, lambda f: bool(load(f)))])
words = [lowtide, "run", m, "-p", "hello", "-n", "40", "--report", rep, "-q"]
kill_loop(words, 8, took(words) * 1.2, [(rep, lambda f: load(f)["ended"] == "length")])
out = path("made.gguf")
words = [mkmodel, "--arch", "llama", "--layers", "4", "--embd", "512", "--ff", "1024", "--vocab", "8000", "-o", out]
kill_loop(words, 10, took(words) * 1.2, [(out, lambda f: lt("inspect", f).returncode == 0)])


class Terminal:
    """The command with a terminal for stdin and stderr, and for stdout when asked."""

    def __init__(self, *words, out=subprocess.PIPE, columns=100):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.p = subprocess.Popen([lowtide, *words], stdin=slave, stderr=slave, stdout=slave if out is None else out,
                                  start_new_session=True, env={**os.environ, "TERM": "xterm"},
                                  preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = ""

    def wait_for(self, pattern, seconds=40):
        end = time.time() + seconds
        while not re.search(pattern, self.seen):
            if time.time() > end or not self.pump(0.5) and self.p.poll() is not None:
                fail(f"terminal: no /{pattern}/ in {self.seen[-600:]!r}")

    def pump(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
                return True
            except OSError:
                return False
        return False

    def type(self, keys):
        # The editor takes the terminal over after it has printed its prompt; a control key that comes
        # between the two is the terminal's, and lost. Nobody types that fast.
        time.sleep(0.3)
        self.seen = ""
        os.write(self.master, keys.encode())

    def end(self):
        while self.pump(1):
            pass
        code = self.p.wait(60)
        out = self.p.stdout.read().decode(errors="replace") if self.p.stdout else ""
        os.close(self.master)
        return code, out


t = Terminal("run", m, "-p", text[:2000], "-n", "5", "-b", "32")
code, out = t.end()
expect(code == 0 and re.search(r"\rloading \[#+", t.seen) and re.search(r"\rreading \[#+", t.seen), f"no progress bar: {t.seen[:500]!r}")
expect("\r" not in out and "[#" not in out, "progress on stdout")
expect(all(len(x) < 100 for x in re.findall(r"\r(\w+ \[[^\r\n]*)", t.seen)), "a bar is wider than the terminal")
t = Terminal("run", m, "-p", text[:2000], "-n", "2", "-b", "32", columns=30)
code, out = t.end()
expect(all(len(x) < 30 for x in re.findall(r"\r(\w+ \[[^\r\n\x1b]*)", t.seen)), f"a bar is wider than 30 columns: {t.seen[:300]!r}")
r = lt("run", m, "-p", text[:2000], "-n", 5, "-b", 32)
expect("\r" not in r.stderr and "\x1b" not in r.stderr, "progress in a pipe")
t = Terminal("run", m, "-p", "x", "-n", "5", "-q")
code, out = t.end()
expect(code == 0 and t.seen == "", f"--quiet draws: {t.seen!r}")

# A chat: answers, editing, history, Ctrl-C for an answer, Ctrl-D for the end, accounting.
t = Terminal("run", m, "--chat-template", "chatml", "-n", "12", "--temp", "0", "-c", "2048", "--report", rep)
t.wait_for(r"> ")
t.type("first qestion\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[Du\r")  # cursor left six times mends the word
t.wait_for(r"> $")
t.type("\x1b[A")  # up: the line again
t.wait_for(r"first question")
t.type(" é\r")
t.wait_for(r"> $")
t.type("\x04")
code, out = t.end()
r = load(rep)
expect(code == 0 and len(r["tokens"]) == 24 and out.count("\n") == 2, f"chat: {code} {len(r['tokens'])} tokens {out!r} {t.seen[-300:]!r}")
expect("peak    " in t.seen, "chat: no accounting")
in_terminal = out
t = Terminal("run", m, "--chat-template", "chatml", "-n", "8000", "-c", "8192", "--report", rep, out=None)
t.wait_for(r"> ")
t.type("go\r")
t.wait_for(r"go\r\n.+")
time.sleep(0.3)
t.type("\x03")
t.wait_for(r"> $")
t.type("\x03")
code, out = t.end()
expect(code in (0, 130) and "peak    " in t.seen and load(rep)["ended"] == "interrupted", f"chat, Ctrl-C: {code} {t.seen[-400:]!r}")
# A piped chat keeps its history, and is the same as in the terminal.
r = lt("run", m, "--chat-template", "chatml", "-n", 12, "--temp", 0, "-c", 2048, stdin="first question\nfirst question é\n")
expect(r.stdout == in_terminal, f"piped chat: {r.stdout!r}, in the terminal {in_terminal!r}")
# More turns than the context holds: the oldest are forgotten, and it says so.
r = lt("run", m, "--chat-template", "chatml", "-n", 20, "-c", 256, "--temp", 0, stdin="a question of some length, again and again\n" * 12)
expect(r.stdout.count("\n") == 12 and "forgotten" in r.stderr, f"long chat: {r.stdout.count(chr(10))} answers {r.stderr[-300:]}")
print(f"{kills} kills, 7 interrupts, 6 terminals: whole files, exit codes and accounting")
