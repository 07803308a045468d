#!/bin/sh
# Every benchmark on this machine: floors first, then ours, then the peer where its package is installed.
# Numbers belong into docs/performance.md with machine, date and command; nothing here gates anything.
set -eu
build=$1
date -u +%Y-%m-%d
grep -m1 'model name' /proc/cpuinfo || true
for b in pool device ops residency; do
    [ -x "$build/tests/bench_$b" ] || continue
    echo "== bench_$b"
    "$build/tests/bench_$b"
done
python=${LT_PYTHON:-python3}
for name in smollm2 gemma3; do
    model=$(LT_COMMAND=$build/lowtide tools/fetch-model.sh $name) || continue
    echo "== $name"
    "$build/lowtide" bench "$model" --prompt-tokens 128,512 --depth 0,1024 -c 2048
    if "$python" -c 'import llama_cpp' 2>/dev/null; then
        "$python" bench/peer.py "$build" "$model"
    else
        echo "llama-cpp-python is not installed for $python: no peer (LT_PYTHON names another)"
    fi
done
