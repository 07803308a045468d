#!/usr/bin/env python3
"""What is installed is what a stranger needs: headers that compile alone as C11, C17 and C++17, a
pkg-config file that links, man pages, and exactly the exported symbols of cmake/exports.txt."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

build = os.path.abspath(sys.argv[1])
root = os.getcwd()


def run(*cmd, **kw):
    r = subprocess.run(cmd, capture_output=True, text=True, **kw)
    if r.returncode:
        sys.exit(f"{' '.join(cmd)}\n{r.stdout}{r.stderr}")
    return r.stdout


cache = open(os.path.join(build, "CMakeCache.txt")).read()
sanitized = re.search(r"^LT_SANITIZE:\w+=(.+)$", cache, re.M) is not None
shared = os.path.join(build, "liblowtide.so")
exported = sorted(line.split()[2] for line in run("nm", "-D", "--defined-only", shared).splitlines()
                  if line.split()[1] in "TDBR" and not re.search(r"asan|ubsan|tsan|odr", line))
with open("cmake/exports.txt", encoding="utf-8") as f:
    wanted = sorted(f.read().split())
if exported != wanted:
    sys.exit(f"exports differ from cmake/exports.txt\nmissing: {sorted(set(wanted) - set(exported))}\n"
             f"unlisted: {sorted(set(exported) - set(wanted))}")

headers = sorted(os.listdir("include/lowtide"))
with tempfile.TemporaryDirectory() as tmp:
    compilers = [("gcc", "-std=c11", "c"), ("gcc", "-std=c17", "c")]
    if shutil.which("g++"):
        compilers.append(("g++", "-std=c++17", "c++"))
    for h in headers:
        src = os.path.join(tmp, "one.c")
        with open(src, "w", encoding="utf-8") as f:
            f.write(f'#include <lowtide/{h}>\nint main(void) {{ return 0; }}\n')
        for cc, std, lang in compilers:
            run(cc, std, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", lang, "-I", "include", "-fsyntax-only", src)
    prefix = os.path.join(tmp, "usr")
    run("cmake", "--install", build, "--prefix", prefix)
    for want in ("bin/lowtide", "include/lowtide/base.h", "share/man/man1/lowtide.1", "share/man/man1/lowtide-run.1",
                 "share/bash-completion/completions/lowtide"):
        if not os.path.exists(os.path.join(prefix, want)):
            sys.exit(f"not installed: {want}")
    if not sanitized:
        # pkg-config's prefix is that of configure time: --define-variable moves it, as a packager would.
        pc = [os.path.join(d, "lowtide.pc") for d, _, n in os.walk(prefix) if "lowtide.pc" in n][0]
        flags = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", pc).split()
        exe = os.path.join(tmp, "pool")
        run("gcc", "-std=c17", "-o", exe, "examples/pool.c", *flags)
        run(exe, env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(os.path.dirname(pc))})
print(f"{len(headers)} headers, {len(wanted)} exported symbols, install and pkg-config good")
