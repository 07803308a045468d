#!/bin/bash
# On a machine with an NVIDIA card: conformance, equality with the cpu, budgets as the driver's own tools see them,
# and speed beside the floors; one table at the end. Dry run anywhere:
#   bench/gpu.sh BUILD "sim:vram=8G" quick
# Usage: bench/gpu.sh BUILD [DEVICE=cuda] [quick|full]
# LT_TEST_SMOLLM2: a real model's GGUF, compared with the cpu too.
set -u
build=$1 dev=${2:-cuda} size=${3:-full}
lt=$build/lowtide
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work
failed=0
say() { printf '%-44s %s\n' "$1" "$2" | tee -a "$work/table"; }

nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max --format=csv,noheader 2>/dev/null
real=${LT_TEST_SMOLLM2:-}
card=$dev
if [ "${dev%%:*}" = sim ]; then # bits that do not depend on the kind of attention: there is one
    exact=
else
    exact="--attention exact"
fi

# Models are made while the first tests run; `wait` before they are used.
if [ "$size" = full ]; then
    "$build/tests/mkmodel" --preset 7b --type Q4_K --ctx 4096 -o "$work/7b-Q4_K.gguf" >/dev/null &&
        "$build/tests/mkmodel" --preset 7b --type F16 --ctx 4096 -o "$work/7b-F16.gguf" >/dev/null &&
        "$build/tests/mkmodel" --preset 13b --type Q4_K --ctx 4096 -o "$work/13b-Q4_K.gguf" >/dev/null
else
    "$build/tests/mkmodel" --preset tiny --type Q4_K --ctx 4096 -o "$work/tiny-Q4_K.gguf" >/dev/null
fi &
making=$!

echo "== conformance on $dev"
for t in test_device test_ops test_ops_linear test_ops_attention test_ops_prefill test_ops_bits test_lists test_rebudget; do
    case $t:$dev in test_device:sim*|test_lists:sim*) say "$t" "for cards only"; continue ;; esac
    [ -x "$build/tests/$t" ] || { say "$t" "NOT THERE"; failed=1; continue; }
    if LT_BUILD=$build LT_TEST_CARD=$card LT_CONFORMANCE_DEVICES=$dev timeout 300 "$build/tests/$t" >"$work/$t.log" 2>&1; then
        say "$t" "passed; $(grep -E 'compared bit by bit' "$work/$t.log" | tail -1)"
    else
        say "$t" "FAILED"
        grep -vE '^\[ +(OK|RUN)|^planted' "$work/$t.log" | tail -25
        failed=1
    fi
done

if [ "$dev" = cuda ]; then # a Hopper runs the kernels of other cards too
    if LT_CONFORMANCE_DEVICES="cuda:sm90a=0" timeout 300 "$build/tests/test_ops_prefill" >"$work/other.log" 2>&1; then
        say "test_ops_prefill, kernels of other cards" passed
    else
        say "test_ops_prefill, kernels of other cards" FAILED
        grep -vE '^\[ +(OK|RUN)|^planted' "$work/other.log" | tail -25
        failed=1
    fi
fi

# Managed memory: where the system has it, everything of device memory holds too.
managed=
if [ "${dev%%:*}" = cuda ]; then
    if "$lt" doctor --device "$dev" --memory managed -q >"$work/m.log" 2>&1; then
        managed=$dev,managed=1
        [ "$dev" = cuda ] && managed=cuda:managed=1
    else
        say "managed memory" "not here: $(tail -1 "$work/m.log")"
    fi
else
    say "managed memory" "for cards only"
fi
for t in ${managed:+test_device test_rebudget}; do
    if LT_BUILD=$build LT_TEST_CARD=$managed LT_CONFORMANCE_DEVICES=$managed timeout 300 "$build/tests/$t" >"$work/m.log" 2>&1; then
        say "$t, managed memory" passed
    else
        say "$t, managed memory" FAILED
        grep -vE '^\[ +(OK|RUN)|^planted' "$work/m.log" | tail -25
        failed=1
    fi
done

echo "== the same bits as cpu, at any budget and batch"
text="The tide goes out because the Moon pulls the sea, and comes back because the Earth turns under it."
score() { # file, name of the logits, options...
    local model=$1 name=$2
    shift 2
    "$lt" score "$model" -p "$text" -c 512 -q --logits "$work/$name.npy" "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; failed=1; }
}
same() { # label, logits, logits...
    local label=$1 first=$2 n
    shift 2
    for n in "$@"; do
        cmp -s "$work/$first.npy" "$work/$n.npy" || { say "$label" "$n DIFFERS from $first"; failed=1; return; }
    done
    say "$label" "same bits: $first $*"
}
# The least budget the plan takes, by its own word, and 8 MiB for what a context takes more or less.
least() { "$lt" plan "$1" --device "$dev" -c 512 -b 16 --json -q 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin)["smallest_budget_bytes"] + (8 << 20))' 2>/dev/null; }
compare() { # label, file
    local tight
    score "$2" cpu --device cpu
    score "$2" exact --device "$dev" $exact
    same "$1, exact" cpu exact
    tight=$(least "$2")
    score "$2" whole --device "$dev"
    score "$2" batch7 --device "$dev" -b 7
    [ -n "$tight" ] && score "$2" least --device "$dev" -b 16 --vram "$tight"
    [ -n "$managed" ] && score "$2" managed --device "$dev" --memory managed ${tight:+-b 16 --vram "$tight"}
    same "$1" whole batch7 ${tight:+least} ${managed:+managed}
    python3 - "$work/cpu.npy" "$work/whole.npy" <<'PY' | while read -r line; do say "$1, default attention" "$line"; done
import sys
try:
    import numpy as np
    a, b = (np.load(f).astype(np.float64) for f in sys.argv[1:])
    print(f"normalised error against cpu {((a - b) ** 2).sum() / (a ** 2).sum():.2e}; {int((a.argmax(1) == b.argmax(1)).sum())} of {len(a)} best tokens the same")
except ImportError:
    print("no numpy here: not compared")
PY
}
small="--layers 4 --embd 512 --ff 1024 --heads 8 --kv-heads 4 --head-dim 64 --vocab 4000 --ctx 2048"
for arch in llama qwen2 qwen3 gemma2 gemma3 phi3; do
    "$build/tests/mkmodel" --arch $arch $small --type Q4_K --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/m.gguf" >/dev/null || failed=1
    compare "$arch" "$work/m.gguf"
done
[ -n "$real" ] && compare "$(basename "$real")" "$real"

if command -v compute-sanitizer >/dev/null && [ "${dev%%:*}" = cuda ]; then
    echo "== compute-sanitizer"
    for tool in memcheck racecheck initcheck; do
        for kind in Q4_K F16; do
            "$build/tests/mkmodel" --arch llama --layers 2 --embd 256 --ff 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 1024 --type $kind \
                --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/s.gguf" >/dev/null || failed=1
            if timeout 120 compute-sanitizer --tool $tool --error-exitcode 9 "$lt" run "$work/s.gguf" -p "$text" -n 8 --temp 0 -c 512 --device "$dev" \
                --profile "$work/sim-profile.json" -q >"$work/s.log" 2>&1; then
                say "$tool, a $kind model's prompt and 8 tokens" "$(grep -oE 'ERROR SUMMARY: [0-9]+ error|RACECHECK SUMMARY: [0-9]+ hazard' "$work/s.log" | tail -1)"
            else
                say "$tool, $kind" "FAILED: $(grep -E '=====' "$work/s.log" | head -3 | tr '\n' ' ')"
                failed=1
            fi
        done
    done
fi

# Most memory of our process that the driver reports while a command runs, sampled at 10 ms or as fast as it answers.
watched() {
    "$@" &
    local pid=$! most=0 now
    while kill -0 $pid 2>/dev/null; do
        now=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>/dev/null | awk -F, -v p=$pid '$1 == p {print $2 + 0}')
        [ -n "$now" ] && [ "$now" -gt "$most" ] && most=$now
        sleep 0.01
    done
    wait $pid
    local rc=$?
    echo "$most" >"$work/most"
    return $rc
}

speed() { # label, model, budget, tokens, options...
    local label=$1 model=$2 budget=$3 n=$4
    shift 4
    watched "$lt" bench "$model" --device "$dev" --vram "$budget" --prompt-tokens 512 -n "$n" -r 2 --json -q "$@" >"$work/b.json" 2>"$work/err"
    if [ $? != 0 ]; then say "$label at $budget" "FAILED: $(tail -1 "$work/err")"; failed=1; return; fi
    say "$label at $budget" "$(python3 - "$work/b.json" "$(cat "$work/most")" <<'PY'
import json, sys
j, most = json.load(open(sys.argv[1])), int(sys.argv[2])
r = {x["test"]: x for x in j["results"]}
peak, predicted, budget = j["peak_bytes"], j["plan"]["predicted_peak_bytes"], j["budget_bytes"]
over = "  OVER" if most << 20 > budget or peak > budget else ""
print(f"prefill {r['prefill']['tps']:8.1f} ({r['prefill']['of_floor']:4.0%} of floor)  decode {r['decode']['tps']:7.2f} ({r['decode']['of_floor']:4.0%})"
      f"  peak {peak / 2**20:.0f} of {budget / 2**20:.0f} MiB, driver saw {most}, predicted {peak / predicted - 1:+.2%}{over}")
PY
)"
    tail -1 "$work/table" | grep -q OVER && failed=1
}

echo "== speed and budget"
wait $making || { say "models" "FAILED to be made"; failed=1; }
if [ "$size" = full ]; then
    for b in 2G 4G 8G; do speed "7b F16" "$work/7b-F16.gguf" $b 12 -c 1024; done
    speed "7b F16, read in place" "$work/7b-F16.gguf" 4G 12 -c 1024 --offload mapped
    speed "7b F16" "$work/7b-F16.gguf" 16G 128 -c 1024
    speed "7b F16, batch 2048" "$work/7b-F16.gguf" 4G 4 -c 2176 -b 2048 --prompt-tokens 512,2048
    for b in 1536M 2G 4G; do speed "7b Q4_K" "$work/7b-Q4_K.gguf" $b 24 -c 1024; done
    speed "7b Q4_K" "$work/7b-Q4_K.gguf" 8G 128 -c 1024
    if [ -n "$managed" ]; then # beside the rows of the same budgets above
        speed "7b Q4_K, managed memory" "$work/7b-Q4_K.gguf" 8G 128 -c 1024 --memory managed
        speed "7b F16, managed memory" "$work/7b-F16.gguf" 8G 12 -c 1024 --memory managed
    fi
    for b in 3G 6G; do speed "13b Q4_K" "$work/13b-Q4_K.gguf" $b 12 -c 1024; done
    speed "13b Q4_K" "$work/13b-Q4_K.gguf" 12G 128 -c 1024
else
    speed "tiny Q4_K" "$work/tiny-Q4_K.gguf" 1G 8 -c 2048
fi
t0=$(date +%s%N)
"$lt" run "$(ls "$work"/7b-F16.gguf "$work"/tiny-Q4_K.gguf 2>/dev/null | head -1)" -p tide -n 1 --temp 0 -c 1024 --vram 4G --device "$dev" -q >/dev/null 2>"$work/err" || failed=1
say "first token from the page cache, 4 GiB" "$((($(date +%s%N) - t0) / 1000000)) ms, the whole process"
say "allocation" "$("$build/tests/bench_alloc" "$dev" 2>&1 | tail -1)"
echo "== pressure: a neighbour takes all but a little while a model decodes"
if [ "${dev%%:*}" = sim ]; then # a card that processes share, and a model that feels it
    shared="sim:vram=96M,h2d=2G,poison=off,card=$work/card" taker=$shared
    "$build/tests/mkmodel" --arch llama $small --type F16 --seed 7 -o "$work/big.gguf" >/dev/null || failed=1
    budget=20M reserve=12M left=2M n=300 hold=2
else
    shared=$dev taker=$dev,kernels=0
    [ "$taker" = "${taker#*:}" ] && taker=$dev:kernels=0
    mv "$work/7b-F16.gguf" "$work/big.gguf" || failed=1
    budget=8G reserve=6G left=1G n=100 hold=5
fi
answer() { "$lt" run "$work/big.gguf" -p tide --temp 0 -n $n -c 1400 --device "$shared" --vram $budget --reserve-vram $reserve --report "$work/$1.json" -q 2>"$work/err"; }
answer quiet >"$work/quiet" || failed=1
answer loud >"$work/loud" &
for _ in $(seq 100); do [ -s "$work/loud" ] && break; sleep 0.1; done
sleep 1
"$build/tests/takevram" "$taker" $left $hold $reserve >"$work/took" || failed=1
wait $! || failed=1
cat "$work/took"
if cmp -s "$work/quiet" "$work/loud"; then same="same answer"; else same="ANOTHER ANSWER" failed=1; fi
say "pressure at $budget, reserve $reserve" "$same; $(python3 - "$work/loud.json" <<'PY'
import json, sys
j = json.load(open(sys.argv[1]))
print("; ".join(f"{c['why']}: {c['from'] / 2**20:.0f} -> {c['to'] / 2**20:.0f} MiB in {c['seconds']:.3f} s, {c['decode_tps_before']:.2f} tok/s before" for c in j["budget_changes"])
      + f"; {j['decode_tps_after_change']:.2f} tok/s after; peak {j['peak_bytes'] / 2**20:.0f} of {j['budget_bytes'] / 2**20:.0f} MiB")
PY
)"
rm -f "$work/big.gguf"
echo "== table"
cat "$work/table"
[ $failed = 0 ] && echo "gpu: all passed" || echo "gpu: FAILURES above"
exit $failed
