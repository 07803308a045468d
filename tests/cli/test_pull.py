#!/usr/bin/env python3
"""lowtide pull against a hub on 127.0.0.1: redirects, hash and size of the first answer, ranges, lines that
drop, servers without ranges, wrong hashes, refusals. A file appears under its name whole or not at all."""
import hashlib
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time

from cli_common import expect, fail, lowtide, lt, path, tmp

DATA = bytes(hashlib.sha256(i.to_bytes(4, "little")).digest()[0] for i in range(1000)) * 700
SHA = hashlib.sha256(DATA).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """What a file's name says is how it is served."""
    seen, drops, tokens = [], {}, {}
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def reply(self, code, headers=(), body=b""):
        self.send_response(code)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        Hub.seen.append((self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        name = self.path.rsplit("/", 1)[1].split("?")[0]
        if self.path.startswith("/api/models/"):
            files = {"one": ["model.gguf", "README.md"], "many": ["a.gguf", "b.gguf"], "none": ["x.bin"],
                     "set": ["q/s-00001-of-00003.gguf", "q/s-00002-of-00003.gguf", "q/s-00003-of-00003.gguf"]}.get(name)
            if files is None:
                return self.reply(404)
            return self.reply(200, [("Content-Type", "application/json")], json.dumps({"siblings": [{"rfilename": f} for f in files]}).encode())
        if name.startswith("missing"):
            return self.reply(404)
        if name.startswith("gated"):
            return self.reply(401 if "Bearer secret" != self.headers.get("Authorization") else 200, [("ETag", '"g"')], DATA[:100])
        if name.startswith("broken"):
            return self.reply(500)
        if name.startswith("loop"):
            return self.reply(302, [("Location", self.path)])
        if name.startswith("plain"):
            return self.reply(200, [("ETag", '"tag1"')], DATA)
        if self.path.startswith("/cdn/"):
            return self.cdn(name)
        sha = "0" * 64 if name.startswith("wrong") else SHA
        size = len(DATA) + 5 if name.startswith("short") else len(DATA)
        other = f"http://localhost:{self.server.server_port}/cdn/{name}?signed=1"
        where = f"/moved{self.path}" if name.startswith("renamed") and not self.path.startswith("/moved") else other
        self.reply(302, [("Location", where), *([("X-Linked-ETag", f'"{sha}"'), ("X-Linked-Size", str(size)), ("ETag", '"git"')]
                                                if where is other else [])])

    def cdn(self, name):
        if self.command == "HEAD":  # signed for GET only
            return self.reply(403)
        start = 0
        rng = self.headers.get("Range")
        if rng and not name.startswith("norange"):
            start = int(rng[6:].split("-")[0])
        body = DATA[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
        self.send_header("ETag", '"cdn-tag"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        left = Hub.drops.get(name, 0)
        if left:
            Hub.drops[name] = left - 1
            self.wfile.write(body[: len(body) // 3 if not name.startswith("stuck") else 0])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if name.startswith("slow"):
            for i in range(0, len(body), 20000):
                self.wfile.write(body[i:i + 20000])
                time.sleep(0.01)
            return
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *a):  # clients are killed on purpose
        pass


server = Server(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
hub = f"http://127.0.0.1:{server.server_port}"
os.chdir(tmp)


def pull(name, code=0, **kw):
    Hub.seen.clear()
    return lt("pull", name, "--endpoint", hub, code=code, **kw)


def parts(name):
    return [f for f in os.listdir(".") if f.startswith(name + ".part")]


def whole(name):
    with open(name, "rb") as f:
        expect(f.read() == DATA, f"{name}: other bytes")
    expect(not parts(name), f"{name}: a part was left")


r = pull("me/repo/model.gguf")
whole("model.gguf")
expect(r.stdout == f"{SHA}  model.gguf\n" and not r.stderr, f"pull: {r.stdout} {r.stderr}")
expect(not any(c == "HEAD" and p.startswith("/cdn") for c, p, *_ in Hub.seen), "HEAD went to the signed address")
r = pull("me/repo/model.gguf", code=2)
expect("is there already" in r.stderr, r.stderr)
os.remove("model.gguf")
r = lt("pull", "me/one", "--endpoint", hub, "--json")
expect(json.loads(r.stdout)["sha256"] == SHA and json.loads(r.stdout)["file"] == "model.gguf", r.stdout)
whole("model.gguf")
expect("2 .gguf files; name one: a.gguf, b.gguf" in pull("me/many", code=2).stderr, "several files")
# Of a model in parts all come, whichever is named; those that are there stay.
S = [f"s-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
r = pull("me/set")
expect(r.stdout == "".join(f"{SHA}  {f}\n" for f in S), r.stdout)
expect([p for c, p, *_ in Hub.seen if p.startswith("/me/")] == [f"/me/set/resolve/main/q/{f}" for f in S for _ in (0, 1)], str(Hub.seen))
for f in S:
    whole(f)
expect("all 3 parts are there already" in pull("me/set", code=2).stderr, "parts twice")
os.remove(S[0])
os.remove(S[2])
r = lt("pull", f"{hub}/x/{S[1]}?a=b", "--json")
expect([(x["file"], x["sha256"]) for x in json.loads(r.stdout)["parts"]] == [(f, SHA) for f in (S[0], S[2])], r.stdout)
for f in S:
    whole(f)
    os.remove(f)
r = lt("pull", "me/set", "--endpoint", hub, "-o", "x.gguf", code=2)
expect("--output is for one file" in r.stderr and "3 parts" in r.stderr, r.stderr)
expect("404" in pull("me/repo/missing-00001-of-00002.gguf", code=3).stderr, "a part is missing")
expect("has no .gguf file" in pull("me/none", code=3).stderr, "no file")
pull("me/nowhere", code=3)

pull("me/repo/renamed.gguf")
whole("renamed.gguf")
lt("pull", f"{hub}/x/plain.gguf?a=b", "-o", "p.gguf", "--sha256", SHA.upper())
whole("p.gguf")
pull("me/repo/with space+%.gguf")
whole("with space+%.gguf")

# The token: to the hub, never to where it redirects.
pull("me/repo/token.gguf", env={"HF_TOKEN": "secret"})
expect(all((a == "Bearer secret") == (not p.startswith("/cdn")) for _, p, _, a in Hub.seen), f"token: {Hub.seen}")
expect("gated" in pull("me/repo/gated.gguf", code=5).stderr, "401")
pull("me/repo/gated.gguf", env={"HF_TOKEN": "secret"})
expect("404" in pull("me/repo/missing.gguf", code=3).stderr, "404")
expect("500" in pull("me/repo/broken.gguf", code=5).stderr, "500")
pull("me/repo/loop.gguf", code=5)

# A dropped line: this run goes on by itself.
Hub.drops["drop.gguf"] = 2
r = pull("me/repo/drop.gguf")
whole("drop.gguf")
ranges = [x[2] for x in Hub.seen if x[1].startswith("/cdn")]
expect(ranges[0] is None and len(ranges) == 3 and all(ranges[1:]) and "going on at byte" in r.stderr, f"drop: {ranges} {r.stderr}")
# It stays dropped: an error, the part stays, and the next run goes on.
Hub.drops["stuck.gguf"] = 4
with open("stuck.gguf.part-" + SHA, "wb") as f:
    f.write(DATA[:1234])
pull("me/repo/stuck.gguf", code=5)
expect(not os.path.exists("stuck.gguf") and os.path.getsize("stuck.gguf.part-" + SHA) == 1234, "stuck: the part")
pull("me/repo/stuck.gguf")
whole("stuck.gguf")
expect([x[2] for x in Hub.seen if x[1].startswith("/cdn")] == ["bytes=1234-"], f"stuck: {Hub.seen}")
# Parts: of another version, whole already, too long, and from a server that knows no ranges.
with open("other.gguf.part-abc", "wb") as f:
    f.write(b"old version")
pull("me/repo/other.gguf")
with open("other.gguf", "rb") as f:
    expect(f.read() == DATA, "other: bytes")
with open("done.gguf.part-" + SHA, "wb") as f:
    f.write(DATA)
pull("me/repo/done.gguf")
whole("done.gguf")
expect(not any(p.startswith("/cdn") for _, p, *_ in Hub.seen), "a whole part was fetched again")
with open("long.gguf.part-" + SHA, "wb") as f:
    f.write(DATA + b"x")
pull("me/repo/long.gguf")
whole("long.gguf")
with open("norange.gguf.part-" + SHA, "wb") as f:
    f.write(DATA[:999])
pull("me/repo/norange.gguf")
whole("norange.gguf")
# What arrives is wrong.
r = pull("me/repo/wrong.gguf", code=3)
expect("SHA-256" in r.stderr and not os.path.exists("wrong.gguf") and not parts("wrong.gguf"), f"wrong hash: {r.stderr}")
with open("damaged.gguf.part-" + SHA, "wb") as f:
    f.write(b"y" * 1000)
r = pull("me/repo/damaged.gguf", code=3)
expect(not os.path.exists("damaged.gguf") and not parts("damaged.gguf"), "a damaged part: what is wrong stays")
pull("me/repo/damaged.gguf")
whole("damaged.gguf")
expect("bytes arrived" in pull("me/repo/short.gguf", code=5).stderr and not os.path.exists("short.gguf"), "short")
lt("pull", f"{hub}/x/plain.gguf", "-o", "q.gguf", "--sha256", "1" * 64, code=3)
expect(not os.path.exists("q.gguf"), "wrong --sha256: kept")
lt("pull", "me/repo/x.gguf", "--endpoint", hub, "-o", "/nonexistent/x", code=5)

# kill -9 at any moment, then once more to the end; Ctrl-C says so.
words = [lowtide, "pull", "me/repo/slow.gguf", "--endpoint", hub, "-q"]
kills = 0
for i in range(12):
    p = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.02 + 0.013 * i)
    p.kill()
    kills += p.wait() == -signal.SIGKILL
    if os.path.exists("slow.gguf"):
        whole("slow.gguf")
        os.remove("slow.gguf")
time.sleep(0.2)  # requests of the killed
Hub.seen.clear()
p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
for _ in range(200):
    time.sleep(0.02)
    if any(x[1].startswith("/cdn") for x in Hub.seen):
        break
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=30)
if p.returncode != 0:
    expect(p.returncode == 130 and "stopped" in err, f"Ctrl-C: {p.returncode} {err}")
# Two at once: the second says so, or finds the first's file.
a = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
b = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
codes = sorted((a.wait(60), b.wait(60)))
if codes[0] != 0 and not os.path.exists("slow.gguf"):
    fail(f"two pulls at once: {codes} {a.stderr.read()} {b.stderr.read()}")
if not os.path.exists("slow.gguf"):
    pull("me/repo/slow.gguf")
whole("slow.gguf")
print(f"pull: {len(DATA)} bytes by every path; {kills} kills left no half file")
