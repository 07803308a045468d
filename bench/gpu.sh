#!/bin/bash
# On a machine with an NVIDIA card: conformance, equality with the cpu, budgets as the driver's own tools see them,
# and speed beside the floors; one table at the end. Dry run anywhere:
#   bench/gpu.sh BUILD "sim:vram=8G" quick
# Usage: bench/gpu.sh BUILD [DEVICE=cuda] [quick|full]
set -u
build=$1 dev=${2:-cuda} size=${3:-full}
lt=$build/lowtide
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work
failed=0
say() { printf '%-44s %s\n' "$1" "$2" | tee -a "$work/table"; }

nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max --format=csv,noheader 2>/dev/null
echo "== conformance on $dev"
for t in test_device test_ops test_ops_linear test_ops_attention test_ops_prefill test_ops_bits; do
    if LT_BUILD=$build LT_CONFORMANCE_DEVICES=$dev timeout 300 "$build/tests/$t" >"$work/$t.log" 2>&1; then
        say "$t" "passed; $(grep -E 'compared bit by bit' "$work/$t.log" | tail -1)"
    else
        say "$t" "FAILED"
        grep -vE '^\[ +(OK|RUN)|^planted' "$work/$t.log" | tail -25
        failed=1
    fi
done

echo "== the same bits as cpu"
small="--layers 4 --embd 512 --ff 1024 --heads 8 --kv-heads 4 --head-dim 64 --vocab 4000 --ctx 2048"
for arch in llama qwen2 qwen3 gemma3 phi3; do
    "$build/tests/mkmodel" --arch $arch $small --type Q4_K --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/m.gguf" >/dev/null || failed=1
    text="The tide goes out because the Moon pulls the sea, and comes back because the Earth turns under it."
    for d in cpu "$dev"; do
        "$lt" score "$work/m.gguf" -p "$text" -c 512 --device "$d" --attention exact -q --logits "$work/${d%%:*}.npy" >/dev/null 2>"$work/err" || { cat "$work/err"; failed=1; }
    done
    if cmp -s "$work/cpu.npy" "$work/${dev%%:*}.npy"; then say "$arch logits" "same bits"; else say "$arch logits" "DIFFER"; failed=1; fi
done

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

speed() { # label, model, budget, options...
    local label=$1 model=$2 budget=$3
    shift 3
    watched "$lt" bench "$model" --device "$dev" --vram "$budget" -c 2048 --prompt-tokens 512 -n 32 -r 2 --json -q "$@" >"$work/b.json" 2>"$work/err"
    if [ $? != 0 ]; then say "$label at $budget" "FAILED: $(tail -1 "$work/err")"; failed=1; return; fi
    say "$label at $budget" "$(python3 - "$work/b.json" "$(cat "$work/most")" <<'PY'
import json, sys
j, most = json.load(open(sys.argv[1])), sys.argv[2]
r = {x["test"]: x for x in j["results"]}
print(f"prefill {r['prefill']['tps']:9.1f} ({r['prefill']['of_floor']:4.0%} of floor)  decode {r['decode']['tps']:8.2f} ({r['decode']['of_floor']:4.0%})"
      f"  peak {j['peak_bytes'] / 2**20:.0f} of {j['budget_bytes'] / 2**20:.0f} MiB, driver saw {most}, predicted {j['plan']['predicted_peak_bytes'] / 2**20:.0f}")
PY
)"
}

echo "== speed and budget"
if [ "$size" = full ]; then
    sizes="1b:Q4_K:1G,4G 7b:F16:4G,16G 7b:Q4_K:2G,8G"
else
    sizes="tiny:Q4_K:1G"
fi
for s in $sizes; do
    IFS=: read -r preset type budgets <<<"$s"
    "$build/tests/mkmodel" --preset "$preset" --type "$type" --ctx 4096 -o "$work/big.gguf" >/dev/null || { failed=1; continue; }
    for b in ${budgets//,/ }; do speed "$preset $type" "$work/big.gguf" "$b"; done
    rm -f "$work/big.gguf"
done
echo "== pressure: a neighbour takes all but a little while a model decodes"
if [ "${dev%%:*}" = sim ]; then # a card that processes share, and a model that feels it
    shared="sim:vram=96M,h2d=2G,poison=off,card=$work/card" taker=$shared
    "$build/tests/mkmodel" --arch llama $small --type F16 --seed 7 -o "$work/big.gguf" >/dev/null || failed=1
    budget=20M reserve=12M left=2M n=300 hold=2
else
    shared=$dev taker=$dev,kernels=0
    [ "$taker" = "${taker#*:}" ] && taker=$dev:kernels=0
    "$build/tests/mkmodel" --preset 7b --type F16 --ctx 4096 -o "$work/big.gguf" >/dev/null || failed=1
    budget=8G reserve=6G left=1G n=160 hold=6
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
