"""Conversations against what the vendors' own templates make of them, recorded by make_chat_golden.py."""
import json
import pathlib
import subprocess
import sys

CASES = json.loads((pathlib.Path(__file__).parent / "chat.json").read_text())


def main():
    wrong, families = 0, {}
    for family, messages, opened, want in CASES:
        data = b"".join(b"%d\n%s" % (len(b), b) for m in messages for b in (m["role"].encode(), m["content"].encode()))
        run = subprocess.run([f"{sys.argv[1]}/tests/render_chat", family] + (["open"] if opened else []),
                             input=data, capture_output=True)
        families[family] = families.get(family, 0) + 1
        if run.returncode or run.stdout.decode() != want:
            wrong += 1
            print(f"{family}: {messages}\n  ours   {run.stdout!r} {run.stderr.decode()}\n  vendor {want!r}")
    print(f"{len(CASES)} conversations of {len(families)} families, {wrong} wrong")
    return wrong != 0 or len(CASES) < 200 or len(families) < 14


sys.exit(main())
