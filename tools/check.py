#!/usr/bin/env python3
"""Checks what a compiler does not: arrows between folders, sizes, unfinished words.

An arrow is an #include. `tools/check.py` run in the project's root prints every offence and exits 1."""
import os
import re
import sys

# Who may include whom, besides itself, base and the public headers.
ARROWS = {
    "base": set(),
    "backend": {"graph"},                 # op.h and dtypes: the arguments of a launch
    "graph": set(),
    "memory": {"backend"},
    "plan": {"graph", "memory", "backend"},
    "engine": {"plan", "graph", "memory", "backend"},
    "format": set(),
    "text": {"format"},
    "models": {"engine", "plan", "graph", "format"},
    "run": {"models", "engine", "plan", "graph", "memory", "format", "text"},
}
MAX_FILE, MAX_FUNCTION = 1200, 100
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def offences():
    for top in ("src", "apps", "include", "examples", "tests", "bench", "tools", "fuzz"):
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".def", ".py", ".sh")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as f:
                        yield from check_file(path, f.read().split("\n"))


def check_file(path, lines):
    if len(lines) - 1 > MAX_FILE:
        yield f"{path}: {len(lines) - 1} lines; at most {MAX_FILE}"
    if path.endswith((".c", ".h", ".cu", ".cuh")):
        for n, line in enumerate(lines, 1):
            m = INCLUDE.match(line)
            if m:
                why = wrong_arrow(path, m.group(1))
                if why:
                    yield f"{path}:{n}: {why}"
        yield from long_functions(path, lines)
    if not path.endswith("check.py"):
        for n, line in enumerate(lines, 1):
            if WORDS.search(line):
                yield f"{path}:{n}: unfinished: {line.strip()}"


def wrong_arrow(path, target):
    parts, top = path.split(os.sep), target.split("/")[0]
    if parts[0] == "src":
        layer = parts[1]
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


found = list(offences())
for o in found:
    print(o)
print(f"check: {len(found)} offences")
sys.exit(bool(found))
