#!/usr/bin/env python3
"""Whatever is typed wrong, missing, unreadable, damaged, too long or too large: one clear sentence, the
right exit code, nothing on stdout, no crash."""
import os
import re
import struct
import subprocess

from cli_common import SMALL, build, expect, fail, lowtide, lt, model, path, tmp

m = model("good.gguf")
sanitized = re.search(r"^LT_SANITIZE:\w+=(.+)$", open(os.path.join(build, "CMakeCache.txt")).read(), re.M) is not None
checked = 0


def bad(code, pattern, *args, **kw):
    """The last line on stderr is the sentence; it matches, and it is the only one that says so."""
    global checked
    r = lt(*args, code=code, text=False, **kw)
    err = r.stderr.decode(errors="replace")
    said = [x for x in err.splitlines() if x.startswith("lowtide: ") and not x.startswith("lowtide: warning")]
    if len(said) != 1 or not re.search(pattern, said[0]) or re.search(r"Sanitizer|Assertion|runtime error", err):
        fail(f"{args}: expected one sentence with /{pattern}/, got:\n{err[-1500:]}")
    expect(len(said[0]) < 600, f"{args}: a sentence of {len(said[0])} characters")
    checked += 1
    return r


run = ("run", m, "-p", "hello", "-n", "3")

# The words.
expect(lt(code=2).stdout == "", "no command: help belongs on stderr")
bad(2, "'frob' is no command", "frob")
bad(2, "'frob' is no command", "help", "frob")
bad(2, "'run' needs MODEL", "run")
bad(2, "one argument too many", "run", m, m)
bad(2, "one argument too many", "doctor", "now")
bad(2, "no such option of 'run'", *run, "--frob")
bad(2, "no such option of 'run'", *run, "--logits", "x")
bad(2, "no such option", *run, "-Z")
bad(2, "needs a value", "run", m, "-p")
bad(2, "takes no value", *run, "--json=yes")
bad(2, "give one of them", *run, "-f", m)
bad(2, "give one of them", "tokenize", m, "-p", "x", "-d", "1")
bad(2, "belongs to a chat", *run, "--system", "be kind")
bad(2, "belongs to a chat", *run, "--chat-template", "chatml")
bad(2, "no text: give --prompt", "tokenize", m)

# Values.
for opt, values in {
    "--temp": ("-1", "nan", "inf", "x", "", "101", "1e"), "--top-k": ("-1", "x", "1.5", "99999999999999999999", ""),
    "--top-p": ("0", "1.1", "-1", "nan"), "--min-p": ("1", "-0.1", "x"), "--repeat-penalty": ("0", "-1", "1000"),
    "--repeat-last": ("65536", "-1"), "--seed": ("-1", "x", "99999999999999999999", " 5", "+5"), "-n": ("0", "-5", "ten", "5e3"),
    "--threads": ("0", "5000", "-1"), "--ctx": ("0", "-1", "99999999999"), "--batch": ("0", "65537", "-3"),
    "--kv": ("q4", "", "I8"), "--ram": ("0", "-1", "4X", "x", "1e9", "0x10", "999999999999T"),
}.items():
    for v in values:
        bad(2, opt.strip("-").replace("threads", "threads|t") + r"|top-p|min-p|penalty", *run, opt, v)
bad(2, "no such template", *run, "--chat", "--chat-template", "frob")
bad(2, "expected token ids", "tokenize", m, "-d", "1,x")
bad(2, "expected token ids from 0 to 1999", "tokenize", m, "-d", "2000")
bad(2, "expected token ids", "tokenize", m, "-d", "-1")
bad(2, "expected token ids", "tokenize", m, "-d", "99999999999999999999999")
for list_ in ("", "x", "5,", ",5", "-1", "1,,2", ",".join(["1"] * 17)):
    bad(2, "expected at most 16 whole numbers" if list_ else "expected", "bench", m, "--prompt-tokens", list_)
bad(2, "expected bash, zsh or fish", "completion", "tcsh")
bad(2, "no such command", "man", "frob")
bad(2, "expected 64 hexadecimal digits", "pull", "a/b/c.gguf", "--sha256", "abc")
bad(2, "expected OWNER/REPO", "pull", "nothing")

# Devices and budgets.
bad(2, "no device kind 'gpu'", *run, "--device", "gpu")
bad(2, "no option 'vrm'", *run, "--device", "sim:vrm=1G")
bad(2, "vram=1X", *run, "--device", "sim:vram=1X")
bad(2, "isa|expected", *run, "--device", "cpu:isa=z80")
for kind in ("", "frob", "Managed", "device,"):
    bad(2, "--memory .*expected device or managed", *run, "--memory", kind)
for spec in ("cpu", "sim:vram=1G", "cudax"):
    bad(2, f"--memory managed: .*'{spec.split(':')[0]}'.*only cuda", *run, "--device", spec, "--memory", "managed")
bad(2, "only cuda", *run, "--device", "sim:vram=1G,managed=1")
bad(2, "managed=2|no kernels", *run, "--device", "cuda:managed=2")
bad(2, "--vram: device 'cpu' computes in RAM", *run, "--vram", "1G")
bad(2, "--reserve-vram: device 'cpu'", *run, "--reserve-vram", "1G")
bad(4, r"\d+ bytes .*are missing", *run, "--ram", "1")
bad(4, r"\d+ bytes .*are missing", *run, "--device", "sim:vram=1G", "--vram", "1")
bad(4, "more than the device has", *run, "--device", "sim:vram=1G", "--vram", "2G")
bad(4, "leaves nothing", *run, "--device", "sim:vram=1G", "--reserve-vram", "1G")
bad(2, "made for at most 1024", *run, "--ctx", "2147483647")
lt(*run, "-b", "65536", "-q")  # a batch over the context is no mistake
bad(4, "context of this plan holds", "bench", m, "-n", "2000")

# Prompts.
bad(2, "the prompt is empty", "run", m, "-p", "")
bad(2, "the prompt is empty", "run", m, "-f", "-", stdin=b"")
bad(3, "No such file", "run", m, "-f", path("none.txt"))
bad(3, "Is a directory", "run", m, "-f", tmp)
bad(4, r"prompt has \d+ tokens.*1024", "run", m, "-f", "-", stdin=b"word " * 3000)
bad(2, "at least 2 are needed", "score", m, "-p", "")
with open(path("zero.txt"), "wb") as f:
    f.write(b"a\0b")
lt("run", m, "-f", path("zero.txt"), "-n", 2, "-q")
bad(2, "zero byte", "run", m, "-f", path("zero.txt"), "--chat", "--chat-template", "chatml")
lt("run", m, "-p", b"caf\xff\xfe \xc3", "-n", 3, "-q", text=False)
r = lt("tokenize", m, "-p", b"caf\xff\xfe \xc3", "--json", text=False)
ids = r.stdout.decode()
back = lt("tokenize", m, "-d", ids[ids.index("["):ids.index("]")], text=False)
expect(back.stdout == b"caf\xff\xfe \xc3", f"invalid UTF-8 does not come back: {back.stdout!r}")
bad(2, "not UTF-8", "tokenize", m, "-d", ids[ids.index("["):ids.index("]")], "--json")

# Files.
bad(3, "No such file", "run", path("none.gguf"), "-p", "x")
bad(3, "folder without config.json", "run", tmp, "-p", "x")
bad(3, "not a regular file", "run", "/dev/null", "-p", "x")
open(path("zero.gguf"), "w").close()
bad(3, "0 bytes", "inspect", path("zero.gguf"))
with open(m, "rb") as f:
    good = f.read()
with open(path("cut.gguf"), "wb") as f:
    f.write(good[: len(good) // 2])
bad(3, "covers .* bytes|whole file has", "run", path("cut.gguf"), "-p", "x")
with open(path("noise.gguf"), "wb") as f:
    f.write(bytes(i * 37 % 251 for i in range(5000)))
for cmd in ("run", "plan", "inspect", "tokenize", "score", "bench"):
    bad(3, "neither GGUF nor safetensors", cmd, path("noise.gguf"), *(["-p", "x"] if cmd in ("run", "tokenize", "score") else []))
bad(3, "No such file", "replay", path("none.trace"))
bad(3, "not a trace", "replay", m)
if os.geteuid() != 0:  # root may read anything
    os.chmod(path("cut.gguf"), 0)
    bad(3, "Permission denied", "inspect", path("cut.gguf"))


def changed(name, old, new, count=1):
    """The good model with bytes replaced by as many others."""
    assert len(old) == len(new) and old in good
    with open(path(name), "wb") as f:
        f.write(good.replace(old, new, count))
    return path(name)


arch = b"general.architecture" + struct.pack("<IQ", 8, 5)
bad(3, "llamb", "run", changed("arch.gguf", arch + b"llama", arch + b"llamb"), "-p", "x")
bad(3, "tokenizer.ggml.tokens|tokenizer", "run", changed("notok.gguf", b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz"), "-p", "x")
name = b"blk.1.ffn_up.weight"
at = good.index(name) + len(name)
ndim = struct.unpack_from("<I", good, at)[0]
with open(path("type.gguf"), "wb") as f:  # 16 is IQ2_XXS: known by name, not supported
    f.write(good[: at + 4 + 8 * ndim] + struct.pack("<I", 16) + good[at + 8 + 8 * ndim:])
r = bad(3, r"blk\.1\.ffn_up\.weight.*IQ2_XXS|IQ2_XXS.*blk\.1\.ffn_up", "run", path("type.gguf"), "-p", "x")
expect("not supported" in lt("inspect", path("type.gguf"), "--tensors").stdout, "inspect: the type is not marked")

# Outputs: said before the work, not after it.
for opt, cmds in {"--report": ("run", "score", "bench"), "--trace": ("run", "score"), "--logits": ("score",)}.items():
    for cmd in cmds:
        words = [cmd, m, *(["-p", "some words to score"] if cmd != "bench" else []), "-q"]
        for where in ("/nonexistent/x", tmp):
            r = bad(5, opt, *words, opt, where)
            expect(not r.stdout, f"{cmd} {opt} {where}: found out after the work")
for opt in ("--logits", "--trace"):
    bad(5, "not a regular file", "score", m, "-p", "some words", opt, "/dev/null")
lt("run", m, "-p", "x", "-n", 2, "-q", "--report", "/dev/null")
expect(not os.path.isfile("/dev/null"), "/dev/null was replaced")

# Standard output.
with open("/dev/full", "w") as full:
    for words in (run, (*run, "--json"), ("inspect", m, "--json"), ("plan", m), ("tokenize", m, "-p", "x y"), ("help",), ("--version",),
                  ("completion", "bash"), ("man",), ("score", m, "-p", "some words", "-q")):
        r = subprocess.run([lowtide, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        expect(r.returncode == 5 and "standard output failed" in r.stderr, f"{words} > /dev/full: exit {r.returncode} {r.stderr[-300:]}")
p = subprocess.Popen([lowtide, "run", m, "-p", "hello", "-n", "900", "--temp", "0", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
p.stdout.read(10)
p.stdout.close()
err = p.stderr.read().decode()
expect(p.wait(60) == 5 and err.count("\n") == 1 and "standard output failed" in err, f"| head -c 10: {p.returncode} {err}")
r = subprocess.run(["sh", "-c", f"exec {lowtide} run {m} -p x -n 3 -q --report {path('closed.json')} >&-"], capture_output=True, text=True)
expect(r.returncode == 5 and "standard output failed" in r.stderr, f"closed stdout: {r.returncode} {r.stderr}")
expect(open(path("closed.json")).read(1) == "{", "closed stdout: text went into the report")

# Surroundings.
env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
few = slice(0, 1) if sanitized else slice(None)  # each measures the machine, which a sanitizer makes slow
for e in (env, {**env, "HOME": "/proc/none"}, {**env, "XDG_CACHE_HOME": "/proc/none"})[few]:
    r = subprocess.run([lowtide, *run], capture_output=True, text=True, env=e, timeout=120)
    expect(r.returncode == 0 and "no cache folder" in r.stderr, f"without a cache folder: {r.returncode} {r.stderr[-300:]}")
prof = path("profile.json")
for content in ("", "{", '{"version": 1}', "[]", '"x"', '{"version": 999, "machine": 5, "dot_rate": 3}', "\0" * 100)[few]:
    with open(prof, "w") as f:
        f.write(content)
    lt(*run, "--profile", prof)
    expect('"memory_rate"' in open(prof).read(), f"a damaged profile {content!r} was not measured anew")
print(f"{checked} ways to be wrong{', sanitized' if sanitized else ''}: one sentence and the right exit code each")
