#!/usr/bin/env python3
"""Each public header opens with an example that compiles, and with its rules of Order, Lifetime,
Threads and Errors. The example is the last indented block before "Order"; it becomes the body of a
function whose parameters are what an example may take for granted."""
import os
import subprocess
import sys
import tempfile

RULES = ("Order", "Lifetime", "Threads", "Errors")
PARAMETERS = """lt_ctx *ctx, lt_device *dev, lt_queue *queue, lt_modelfile *file, lt_model *model, lt_plan *plan,
lt_pool *pool, lt_sampler *sampler, const char *text, size_t len, const int32_t *prompt, size_t n, uint64_t cols,
void *buffer, uint64_t bytes, uint64_t offset, lt_item *order, lt_item_desc item_desc, lt_pool_desc pool_desc, lt_err err"""


def opening(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    name = os.path.basename(path)
    if not text.startswith(f"/* {name} - "):
        sys.exit(f"{path}: does not open with '/* {name} - what it is'")
    return [line[2:] if line.startswith(" *") else line for line in text[:text.index("*/")].split("\n")]


def example(path):
    lines = opening(path)
    at = {}
    for rule in RULES:
        found = [i for i, line in enumerate(lines) if line.startswith(f" {rule} ")]
        if len(found) != 1:
            sys.exit(f"{path}: its opening says '{rule}' {len(found)} times, expected once")
        at[rule] = found[0]
    if sorted(RULES, key=at.get) != list(RULES):
        sys.exit(f"{path}: its rules are not in the order {', '.join(RULES)}")
    end = at["Order"]
    while end and not lines[end - 1].startswith("     "):
        end -= 1
    start = end
    while start and lines[start - 1].startswith("     "):
        start -= 1
    code = [line[5:] for line in lines[start:end]]
    if not any(";" in line for line in code):
        sys.exit(f"{path}: no example before its rules")
    return "\n".join(code)


headers = sorted(os.listdir("include/lowtide"))
with tempfile.TemporaryDirectory() as tmp:
    src = os.path.join(tmp, "example.c")

    def compiles(header, code):
        """Its own header comes first; the others only declare what the parameters need."""
        with open(src, "w", encoding="utf-8") as f:
            f.write(f"#include <lowtide/{header}>\n" + "".join(f"#include <lowtide/{h}>\n" for h in headers))
            f.write(f"#include <stdio.h>\nint example({PARAMETERS});\nint example({PARAMETERS})\n{{{{\n{code}\n}}\nreturn 0;\n}}\n")
        return subprocess.run(["cc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-Wno-unused-result",
                               "-I", "include", "-fsyntax-only", src], capture_output=True, text=True)

    if compiles("base.h", "lt_no_such_function(ctx);").returncode == 0:
        sys.exit("an example that calls what does not exist compiled: this test sees nothing")
    for h in headers:
        r = compiles(h, example(os.path.join("include/lowtide", h)))
        if r.returncode:
            sys.exit(f"include/lowtide/{h}: its example does not compile\n{r.stderr}")
print(f"{len(headers)} headers: examples compile, rules are there")
