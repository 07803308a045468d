"""Renders conversations by published Jinja templates, as the vendors' library does, and writes
golden/chat.json and src/text/chat_known.inc. Needs jinja2 and a built render_chat.

    python3 make_chat_golden.py FOLDER RENDER_CHAT [FAMILY]     with FAMILY, those of the others stay as they are

FOLDER holds templates named FAMILY--ORIGIN.jinja; they are not part of the project. A template gets
into chat_known.inc only if render_chat writes what it writes, for every conversation that it takes.
"""
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent
BOS = {"llama2": "<s>", "mistral": "<s>", "mistral-v1": "<s>", "tekken": "<s>", "gemma": "<bos>", "phi3": "<s>",
       "llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>"}
CLOCK = {"harmony": {"strftime_now": lambda form: "2025-08-05"}}  # a constant in ours: see src/text/chat.c
# What the tokenizer puts there by itself (chat.h): spaces behind what is a control token in the family.
OWN_SPACES = {"mistral-v1": ["<s>", "</s>"], "mistral": ["<s>", "</s>", "[INST]", "[/INST]"]}


def conversations():
    r = random.Random(11)
    pieces = ["Why is the sky blue?", "  padded  ", "two\nlines\n", "\n\nlead", "", "été 日本 😀", "<b>&amp;</b> {{ x }} {% y %}",
              "a\tb \u00a0", "code:\n```c\nint x;\n```", "'quoted' \"text\" \\n", "<think>\nhm\n</think>\n\nanswer"]
    out = []
    for turns in (1, 1, 1, 2, 3, 3, 5, 4):
        for system in (None, "You are terse.", "  Speak\nlike a pirate. \n"):
            m = [{"role": "system", "content": system}] if system is not None else []
            for i in range(turns):
                text = r.choice(pieces)
                if "think" in text and i % 2 == 0:
                    text = "plain"
                m.append({"role": "user" if i % 2 == 0 else "assistant", "content": text})
            out.append(m)
    return out


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=["jinja2.ext.loopcontrols"])

    def refuse(message):
        raise jinja2.TemplateError(message)
    env.globals["raise_exception"] = refuse
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return env


def without_own_spaces(family, text):
    for mark in OWN_SPACES.get(family, []):
        text = text.replace(mark + " ", mark)
    return text.removeprefix(BOS.get(family, ""))


def ours(tool, family, messages, opened):
    data = b"".join(b"%d\n%s" % (len(b), b) for m in messages for b in (m["role"].encode(), m["content"].encode()))
    run = subprocess.run([tool, family] + (["open"] if opened else []), input=data, capture_output=True)
    if run.returncode:
        raise SystemExit(run.stderr.decode())
    return run.stdout.decode()


def main():
    tool, rows, golden = sys.argv[2], {}, {}
    only = sys.argv[3] if len(sys.argv) > 3 else None
    name = {"llama3.1": "LLAMA31", "mistral-v1": "MISTRAL1"}
    known, cases = HERE / "../../src/text/chat_known.inc", []
    lines = [] if only is None else [x for x in known.read_text().splitlines(True) if f"LT_CHAT_{name.get(only, only.upper())}}}" not in x]
    if only is not None:
        cases = [c for c in json.loads((HERE / "chat.json").read_text()) if c[0] != only]
    for path in sorted(pathlib.Path(sys.argv[1]).glob(f"{only or '*'}--*.jinja")):
        family, source = path.name.split("--")[0], path.read_text()
        template = environment().from_string(source)
        bos, same, refused, first = BOS.get(family, ""), 0, 0, None
        for messages in conversations():
            opened = messages[-1]["role"] == "user"
            try:
                text = template.render(messages=messages, add_generation_prompt=opened, bos_token=bos, tools=None,
                                       eos_token="" if family.startswith("phi") else "</s>", **CLOCK.get(family, {}))
            except (jinja2.TemplateError, IndexError, TypeError):
                refused += 1
                continue
            text = without_own_spaces(family, text)
            mine = ours(tool, family, messages, opened)
            if text == mine:
                same += 1
                golden[json.dumps([family, messages, opened])] = mine
            elif first is None:
                first = (messages, text, mine)
        if first or same < 8:
            print(f"{path.name}: not known: {same} the same, {refused} refused\n   {first}")
            continue
        print_of = subprocess.run([tool, "fingerprint"], input=source.encode(), capture_output=True).stdout.split()[0].decode()
        print(f"{path.name}: {print_of}, {same} the same, {refused} refused")
        rows.setdefault(print_of, (family, path.stem.split("--")[1]))
    known.write_text("".join(lines + [
        f"    {{{p}u, LT_CHAT_{name.get(f, f.upper())}}},\n" for p, (f, _) in sorted(rows.items(), key=lambda r: r[1])]))
    cases += [[*json.loads(k), v] for k, v in golden.items()]
    (HERE / "chat.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(len(rows), "templates,", len(cases), "conversations,", sorted({c[0] for c in cases}))


main()
