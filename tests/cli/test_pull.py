#!/usr/bin/env python3
"""lowtide pull against a hub on 127.0.0.1: redirects, hash and size of the first answer, ranges, lines that
drop, servers without ranges, wrong hashes, refusals. A file appears under its name whole or not at all."""
import hashlib
import http.server
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from cli_common import expect, fail, lowtide, lt, model, path, tmp

DATA = bytes(hashlib.sha256(i.to_bytes(4, "little")).digest()[0] for i in range(1000)) * 700
SHA = hashlib.sha256(DATA).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """What a file's name says is how it is served."""
    seen, drops, files, stalls, wrong, open_line = [], {}, {}, set(), set(), threading.Event()
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
            files = {"one": ["model.gguf", "README.md"], "many": ["a.gguf", "b.gguf"], "none": ["x.bin"], "signs": ["s-00001-of--0001.gguf"], "bell": ["s\7.gguf"], "long": ["x" * 4000] * 4500, "tensors": list(Hub.files), "single": ["model.safetensors", "config.json"],
                     "set": ["q/s-00001-of-00003.gguf", "q/s-00002-of-00003.gguf", "q/s-00003-of-00003.gguf"]}.get(name)
            if files is None:
                return self.reply(404)
            return self.reply(200, [("Content-Type", "application/json")], json.dumps({"siblings": [{"rfilename": f} for f in files]}).encode())
        if name.startswith("missing") or (name.endswith((".json", ".jinja")) and name not in Hub.files):
            return self.reply(404)
        if name.startswith("gated"):
            return self.reply(401 if "Bearer secret" != self.headers.get("Authorization") else 200, [("ETag", '"g"')], DATA[:100])
        if name.startswith("broken"):
            return self.reply(500)
        if name.startswith("loop"):
            return self.reply(302, [("Location", self.path)])
        if name.startswith("flood"):  # without end, after a HEAD that speaks of 100 bytes
            self.send_response(200)
            self.send_header("ETag", '"f"')
            self.send_header("Content-Length", "100") if self.command == "HEAD" else self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(3000 if self.command == "GET" else 0):
                self.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            return
        if name.startswith("half"):  # never more than the first half, whatever range is asked for
            self.send_response(200)
            self.send_header("ETag", '"h"')
            self.send_header("Content-Length", "1000")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(bytes(500))
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if name.startswith("giant"):
            return self.reply(200, [("X-Linked-ETag", '"' + "a" * 64 + '"'), ("X-Linked-Size", "9223372036854775807")], b"small")
        if name.startswith("plain"):
            return self.reply(200, [("ETag", '"tag1"')], DATA)
        if self.path.startswith("/cdn/"):
            return self.cdn(name)
        data = Hub.files.get(name, DATA)
        if data is None:
            return self.reply(404)
        sha = "0" * 64 if name.startswith("wrong") or name in Hub.wrong else hashlib.sha256(data).hexdigest()
        size = len(data) + 5 if name.startswith("short") else len(data)
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
        data = Hub.files.get(name, DATA)
        body = data[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
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
        if name in Hub.stalls:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            Hub.open_line.wait(30)
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
    d = os.path.dirname(name) or "."
    return [os.path.join(d, f) if d != "." else f for f in (os.listdir(d) if os.path.isdir(d) else []) if f.startswith(os.path.basename(name) + ".part")]


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
expect([p for c, p, *_ in Hub.seen if p.startswith("/me/")] == [f"/me/set/resolve/main/q/{f}" for _ in (0, 1) for f in S], str(Hub.seen))
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
expect("has no .gguf file and no model.safetensors" in pull("me/none", code=3).stderr, "no file")
pull("me/nowhere", code=3)

# A name with a sign where digits belong is one file, not 4294967295 parts; one that a terminal would obey is refused.
pull("me/signs", env={"MALLOC_ARENA_MAX": "1"})
whole("s-00001-of--0001.gguf")
os.remove("s-00001-of--0001.gguf")
expect("control characters" in pull("me/bell", code=3).stderr, "a bell in a name")
expect("over 16 MiB" in pull("me/long", code=3).stderr, "a listing without measure")

# A real model in three parts, each too small for luck.
G = [f"g-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
model("g.gguf", split=3)
for f in G:
    with open(path(f), "rb") as fh:
        Hub.files[f] = fh.read()
    os.remove(f)


def here(names):
    return [f for f in names if os.path.exists(f)], [x for f in names for x in parts(f)]


def cdn_ranges():
    return [(p.split("/")[-1].split("?")[0], r) for c, p, r, _ in Hub.seen if p.startswith("/cdn") and c == "GET"]


def stop_inside(words, name):
    """Runs until half of `name` has arrived, then Ctrl-C."""
    Hub.stalls.add(os.path.basename(name))
    p = subprocess.Popen([lowtide, "pull", *words, "--endpoint", hub], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        time.sleep(0.02)
        if any(os.path.getsize(x) > 0 for x in parts(name)):
            break
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    Hub.open_line.set()
    Hub.stalls.clear()
    Hub.open_line.clear()
    expect(p.returncode == 130, f"Ctrl-C in {name}: {p.returncode} {err}")
    return out, err


def one_sentence(text):
    expect(text.startswith("lowtide: ") and text.count("\n") == 1, f"not one sentence: {text}")


out, err = stop_inside(["me/repo/" + G[0]], G[1])
one_sentence(err)
expect("part 2 of 3" in err and "pull it again to go on" in err, err)
half = len(Hub.files[G[1]]) // 2
expect(here(G)[0] == G[:1] and 0 < os.path.getsize(here(G)[1][0]) <= half, f"stopped in part 2: {here(G)}")
at = os.path.getsize(here(G)[1][0])
first = os.stat(G[0]).st_mtime_ns
pull("me/repo/" + G[2])  # any part
expect(cdn_ranges() == [(G[1], f"bytes={at}-"), (G[2], None)], f"not gone on with: {cdn_ranges()}")
expect(os.stat(G[0]).st_mtime_ns == first and here(G) == (G, []), f"after going on: {here(G)}")
expect(json.loads(lt("inspect", G[0], "--json").stdout)["parts"] == 3, "inspect")
for f in G:
    with open(f, "rb") as fh:
        expect(fh.read() == Hub.files[f], f"{f}: other bytes")
    os.remove(f)
# A part is wrong: it goes, the whole ones before it stay, and only the rest is fetched then.
right, Hub.files[G[1]] = Hub.files[G[1]], None
r = pull("me/repo/" + G[0], code=3)
one_sentence(r.stderr)
expect(f"part 2 of 3: {hub}/me/repo/resolve/main/{G[1]}: no such file there (404); nothing was pulled" in r.stderr, r.stderr)
expect(not r.stdout and here(G) == ([], []) and not cdn_ranges(), f"a part is missing: {here(G)} {cdn_ranges()}")
Hub.files[G[1]] = right
Hub.wrong.add(G[1])
r = pull("me/repo/" + G[0], code=3)
one_sentence(r.stderr)
expect("part 2 of 3: " in r.stderr and "SHA-256" in r.stderr and here(G) == (G[:1], []), f"{r.stderr} {here(G)}")
Hub.wrong.clear()
pull("me/repo/" + G[0])
expect([f for f, _ in cdn_ranges()] == G[1:] and here(G) == (G, []), f"after a wrong part: {cdn_ranges()}")
lt("inspect", G[1])
for f in G:
    os.remove(f)

# On a terminal one line says which part it is, of how many.
main, side = pty.openpty()
p = subprocess.Popen([lowtide, "pull", "me/repo/" + G[0], "--endpoint", hub], stdout=subprocess.DEVNULL, stderr=side)
os.close(side)
shown = b""
while True:
    try:
        got = os.read(main, 4096)
    except OSError:  # the other end is closed
        break
    if not got:
        break
    shown += got
os.close(main)
expect(p.wait(30) == 0, f"on a terminal: {shown}")
said = re.findall(rb"(part \d of \d) \[.*?\] +(\d+)%", shown)
expect([x for i, (x, _) in enumerate(said) if i == 0 or said[i - 1][0] != x] == [b"part 1 of 3", b"part 2 of 3", b"part 3 of 3"], f"progress: {shown}")
expect([int(n) for _, n in said] == sorted(int(n) for _, n in said) and said[-1][1] == b"100" and b"\n" not in shown, f"progress: {shown}")
for f in G:
    os.remove(f)


# A safetensors repository: the index, its shards and what describes them, into a folder.
def tensors(names_and_shapes):
    head, at = {}, 0
    for name, shape in names_and_shapes:
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


LAYER = "model.layers.0."
SHARDS = {"model-00001-of-00002.safetensors": [("model.embed_tokens.weight", [64, 32]), ("model.norm.weight", [32]), ("lm_head.weight", [64, 32])],
          "model-00002-of-00002.safetensors": [(LAYER + f"self_attn.{x}_proj.weight", [32, 32]) for x in "qkvo"]
          + [(LAYER + f"{x}_layernorm.weight", [32]) for x in ("input", "post_attention")]
          + [(LAYER + f"mlp.{x}_proj.weight", [64, 32] if x != "down" else [32, 64]) for x in ("gate", "up", "down")]}
INDEX = "model.safetensors.index.json"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128}
Hub.files.clear()
for f, t in SHARDS.items():
    Hub.files[f] = tensors(t)
Hub.files["config.json"] = json.dumps(CONFIG).encode()
Hub.files["tokenizer_config.json"] = b"{}"
Hub.files[INDEX] = json.dumps({"metadata": {}, "weight_map": {t: f for f, ts in SHARDS.items() for t, _ in ts}}).encode()
ALL = ["config.json", "tokenizer_config.json", *SHARDS, INDEX]
SECOND = list(SHARDS)[1]


def folder(name):
    if not os.path.isdir(name):
        return None
    return sorted(os.listdir(name))


os.makedirs("work")
os.chdir("work")
for words, name in ((["me/repo/" + INDEX], "repo"), (["me/tensors"], "tensors"), (["me/repo/" + INDEX, "-o", "mine"], "mine"),
                    ([f"{hub}/me/there/resolve/main/{INDEX}?download=true"], "there"), ([f"{hub}/one/two/{INDEX}"], "two")):
    Hub.seen.clear()
    r = lt("pull", *words, "--endpoint", hub)
    expect([line.split("  ")[1] for line in r.stdout.splitlines()] == [f"{name}/{f}" for f in ALL], f"{words}: {r.stdout}")
    expect(folder(name) == sorted(ALL), f"{words}: {folder(name)}")
    for f in ALL:
        with open(f"{name}/{f}", "rb") as fh:
            expect(fh.read() == Hub.files[f], f"{name}/{f}: other bytes")
    expect("all 5 files are there already" in lt("pull", *words, "--endpoint", hub, code=2).stderr, "twice")
for what in ("repo", "repo/" + INDEX):
    expect("architecture llama" in lt("inspect", what).stdout, f"inspect {what}")
lt("plan", "repo", "--device", "cpu")
os.rename("repo", "kept")
expect([x["file"] for x in json.loads(lt("pull", "me/repo/" + INDEX, "--endpoint", hub, "--json").stdout)["files"]] == [f"repo/{f}" for f in ALL], "json")
for f in os.listdir("repo"):
    os.remove("repo/" + f)
os.rmdir("repo")
# A shard is missing, wrong, cut off in the middle: the index comes last, so no folder looks whole.
right, Hub.files[SECOND] = Hub.files[SECOND], None
r = lt("pull", "me/repo/" + INDEX, "--endpoint", hub, code=3)
one_sentence(r.stderr)
expect(SECOND in r.stderr and "404" in r.stderr and "nothing was pulled" in r.stderr and folder("repo") is None, f"{r.stderr} {folder('repo')}")
Hub.files[SECOND] = right
Hub.wrong.add(SECOND)
r = lt("pull", "me/repo/" + INDEX, "--endpoint", hub, code=3)
one_sentence(r.stderr)
expect("file 4 of 5: " in r.stderr and "SHA-256" in r.stderr and folder("repo") == sorted(ALL[:3]), f"{r.stderr} {folder('repo')}")
Hub.wrong.clear()
_, err = stop_inside(["me/repo/" + INDEX], "repo/" + SECOND)
expect("file 4 of 5" in err and not os.path.exists("repo/" + INDEX), f"stopped in a shard: {err} {folder('repo')}")
Hub.seen.clear()
lt("pull", "me/repo/" + INDEX, "--endpoint", hub)
expect([f for f, r in cdn_ranges()] == [INDEX, SECOND, INDEX] and cdn_ranges()[1][1], f"gone on: {cdn_ranges()}")
expect(folder("repo") == sorted(ALL), f"gone on: {folder('repo')}")
# Sizes whose sum is no number.
Hub.files[INDEX] = json.dumps({"weight_map": {"a": "giant-1.safetensors", "b": "giant-2.safetensors"}}).encode()
expect("bytes arrived" in lt("pull", "me/giants/" + INDEX, "--endpoint", hub, code=5).stderr and SECOND not in folder("giants"), "giants")
# Indexes that name what they must not.
for name, want in (("../../etc/x.safetensors", "no .safetensors file beside the index"), ("/x.safetensors", "no .safetensors file"), ("..", "no .safetensors"),
                   ("config.json", "no .safetensors"), ("a\x1b[2J.safetensors", "no .safetensors file"), (7, "no .safetensors"), (None, "no weight_map")):
    Hub.files[INDEX] = json.dumps({"weight_map": {"a": name}} if name is not None else {"a": 1}).encode()
    r = lt("pull", "me/bad/" + INDEX, "--endpoint", hub, code=3)
    one_sentence(r.stderr)
    expect(want in r.stderr and folder("bad") is None, f"{name}: {r.stderr}")
expect("404" in lt("pull", "me/bad/other.safetensors.index.json", "--endpoint", hub, code=3).stderr, "no index")
expect("--sha256 is for one file" in lt("pull", "me/bad/" + INDEX, "--endpoint", hub, "--sha256", "0" * 64, code=2).stderr, "--sha256")
expect("names no folder" in lt("pull", f"{hub}/{INDEX}", code=2).stderr, "no folder")
expect("names no file" in lt("pull", f"me/repo/{INDEX}?at=://", "--endpoint", hub, code=2).stderr, "a URL behind a question mark")
expect("names no folder" in lt("pull", f"me/../{INDEX}", "--endpoint", hub, code=2).stderr, "no folder")
# One file of tensors: a repository is its folder, a file is a file.
Hub.files["model.safetensors"] = tensors([x for ts in SHARDS.values() for x in ts])
lt("pull", "me/single", "--endpoint", hub)
expect(folder("single") == ["config.json", "model.safetensors", "tokenizer_config.json"], f"single: {folder('single')}")
lt("inspect", "single")
lt("pull", "me/single/model.safetensors", "--endpoint", hub)
expect(os.path.isfile("model.safetensors"), "one file")
os.chdir(tmp)
Hub.files.clear()

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
# A server that cannot go on in the middle, and never gets further: not for ever.
expect("bytes remaining" in pull("me/repo/half.gguf", code=5).stderr and not os.path.exists("half.gguf"), "half")
# More than it spoke of does not fill the disk.
expect("more arrives than the 100 bytes" in pull("me/repo/flood.gguf", code=5).stderr and [os.path.getsize(x) for x in parts("flood.gguf")] == [0], "flood")
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
