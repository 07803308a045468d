#!/usr/bin/env python3
"""Checks what a compiler does not: arrows between folders, sizes, unfinished words, names of a machine.

An arrow is an #include. `tools/check.py [ROOT]` prints every offence and exits 1 when there is one."""
import os
import re
import shutil
import subprocess
import sys

# Who may include whom, besides itself, base and the public headers.
ARROWS = {
    "base": set(),
    "backend": set(),                     # and WORDS_OF_LAUNCH
    "graph": {"backend"},
    "memory": {"backend"},
    "plan": {"graph", "memory", "backend"},
    "engine": {"plan", "graph", "memory", "backend"},
    "format": set(),
    "text": {"format"},
    "models": {"engine", "plan", "graph", "format"},
    "run": {"models", "engine", "plan", "graph", "memory", "format", "text"},
}
# Where each public header belongs: an arrow to it is an arrow to that folder.
PUBLIC = {"base": "base", "device": "backend", "dtype": "base", "pool": "memory", "residency": "memory", "store": "memory",
          "trace": "memory", "modelfile": "format", "tokenizer": "text", "chat": "text", "model": "models", "plan": "plan",
          "session": "run", "share": "run", "watch": "run"}
# What an op and an element are: backends and graphs share these words.
WORDS_OF_LAUNCH = {"graph/op.h", "graph/ops.def", "graph/block.h", "graph/half.h"}
MAX_FILE, MAX_FUNCTION = 1200, 100
SOURCES = (".c", ".h", ".cu", ".cuh")
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# What holds on one machine only; spelled in pieces, for this file is checked too.
PLACES = re.compile("|".join(re.escape(a + b) for a, b in (
    ("/wo", "rk/"), (".lib", "rary/"), ("pypi", ".org"), ("python", "hosted"), ("deb.", "debian"), ("crates", ".io"),
    ("snapshot.", "debian"), ("/root", "/"))))
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def files():
    """What is committed or about to be; outside of git everything but what a build leaves."""
    git = shutil.which("git") and subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    if git and git.returncode == 0 and git.stdout:
        return sorted(p for p in os.fsdecode(git.stdout).split("\0") if os.path.isfile(p))
    return sorted(os.path.relpath(os.path.join(folder, name), ".") for folder, _, names in os.walk(".") for name in names
                  if not re.match(r"\./(build|\.git)(/|$)", folder))


def check_file(path):
    with open(path, "rb") as f:
        data = f.read()
    if b"\0" in data:
        return
    lines = data.decode("utf-8", "replace").split("\n")
    for n, line in enumerate(lines, 1):
        if PLACES.search(line):
            yield f"{path}:{n}: holds on one machine only: {line.strip()[:100]}"
    if not path.endswith((*SOURCES, ".def", ".py", ".sh")):
        return
    if len(lines) - 1 > MAX_FILE:
        yield f"{path}: {len(lines) - 1} lines; at most {MAX_FILE}"
    if not path.endswith("check.py"):
        for n, line in enumerate(lines, 1):
            if WORDS.search(line):
                yield f"{path}:{n}: unfinished: {line.strip()}"
    if path.endswith(SOURCES):
        for n, line in enumerate(lines, 1):
            m = INCLUDE.match(line)
            why = m and wrong_arrow(path, m.group(1))
            if why:
                yield f"{path}:{n}: {why}"
        yield from long_functions(path, lines)


def wrong_arrow(path, target):
    parts, top = path.split(os.sep), target.split("/")[0]
    if parts[0] == "src":
        layer = parts[1]
        if layer not in ARROWS:
            return f"tools/check.py knows no arrows of src/{layer}"
        if target.startswith("."):
            return f"includes are written from src/, not {target}"
        if top == "lowtide":
            header = target.split("/")[-1].removesuffix(".h")
            if header not in PUBLIC:
                return f"tools/check.py does not know whose {target} is"
            if PUBLIC[header] not in (layer, "base", *ARROWS[layer]):
                return f"{layer} must not include {target}, which is of {PUBLIC[header]}"
        if layer == "backend" and target in WORDS_OF_LAUNCH:
            return None
        if top in ARROWS and top != layer and top != "base" and top not in ARROWS[layer]:
            return f"{layer} must not include {target}"
        if top == "backend" and layer not in ("backend",) and target != "backend/backend.h":
            return f"a backend's inside ({target}) is included by nobody"
        if re.search(r"(^|/)cuda[^/]*\.h$", target) and "cuda" not in parts:
            return f"{target}: CUDA headers stay in src/backend/cuda"
    elif parts[0] in ("apps", "examples", "include") and top in ARROWS:
        return f"{parts[0]} include public headers only, not {target}"
    return None


def long_functions(path, lines):
    """A body starts at a line that is `{` or ends in `) {` at column 0 of its function, and ends at `}` in column 0."""
    start = None
    for n, line in enumerate(lines, 1):
        if start is None and (line == "{" or (line.endswith(") {") and line[:1] not in " \t#/")):
            start = n
        elif start is not None and line.startswith("}"):
            if n - start > MAX_FUNCTION and not path.startswith("tests"):
                yield f"{path}:{start}: a function of {n - start} lines; at most {MAX_FUNCTION}"
            start = None


if len(sys.argv) > 1:
    os.chdir(sys.argv[1])
seen = files()
found = [o for path in seen for o in check_file(path)]
for o in found:
    print(o)
print(f"check: {len(seen)} files, {len(found)} offences")
sys.exit(bool(found))
