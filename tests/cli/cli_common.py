"""What the tests of the command share: the built programs, tiny models, and how a good failure looks."""
import json
import os
import subprocess
import sys
import tempfile

build = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.abspath("build")
lowtide, mkmodel = os.path.join(build, "lowtide"), os.path.join(build, "tests", "mkmodel")

scratch = tempfile.TemporaryDirectory()
tmp = scratch.name
os.environ["XDG_CACHE_HOME"] = tmp
os.environ.pop("HF_TOKEN", None)
for proxy in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(proxy, None)
    os.environ.pop(proxy.upper(), None)

SMALL = {"arch": "llama", "layers": 3, "embd": 256, "ff": 512, "heads": 4, "kv-heads": 2, "head-dim": 64, "vocab": 2000, "ctx": 1024,
         "type": "Q4_K", "seed": 3}


def path(name):
    return os.path.join(tmp, name)


def model(name, **changes):
    out = path(name)
    args = {**SMALL, **{k.replace("_", "-"): v for k, v in changes.items()}}
    subprocess.run([mkmodel, *[x for k, v in args.items() for x in (f"--{k}", str(v))], "-o", out], check=True)
    return out


def lt(*args, code=0, stdin=None, text=True, env=None, timeout=120, **kw):
    """Runs the command and insists on its exit code; a failure must be one sentence on stderr."""
    words = [lowtide, *[a if isinstance(a, bytes) else str(a) for a in args]]
    r = subprocess.run(words, capture_output=True, text=text, input=stdin, timeout=timeout, env={**os.environ, **(env or {})}, **kw)
    if r.returncode != code:
        fail(f"{args}: exit {r.returncode}, expected {code}\n{r.stdout[-800:]}\n{r.stderr[-1500:]}")
    return r


def fail(text):
    sys.exit(f"FAILED: {text}")


def expect(ok, text):
    if not ok:
        fail(text)


def load(name):
    with open(name, encoding="utf-8") as f:
        return json.load(f)
