#!/bin/bash
# On a machine with an NVIDIA card: conformance, equality with the cpu, budgets as the driver's own tools see them, speed
# beside the floors, neighbours; one table at the end, in which every row says passed, FAILED or not here, and why.
#
#   bench/gpu.sh BUILD cuda                     all stages
#   bench/gpu.sh BUILD cuda speed share         some of: tests bits sanitizers speed pressure share big
#   bench/gpu.sh BUILD sim:vram=8G quick        a dry run anywhere: small models, budgets by 128
#
#   bench/gpu.sh BUILD cuda speed rows='13b|mapped'   of that stage the rows whose label matches
#
# big makes a file of 40 GB where the others were, so it comes last. LT_TEST_SMOLLM2, LT_TEST_GEMMA3: real models' GGUFs, compared
# too. LT_BENCH_MODELS: a folder where made models are looked for and stay.
set -u
[ $# -ge 1 ] || { sed -n '5,9s/^# *//p' "$0"; exit 2; }
build=$1 dev=${2:-cuda}
shift $(($# > 2 ? 2 : $#))
all="tests bits sanitizers speed pressure share big" stages="" quick="" rows=""
for s in "$@"; do
    case $s in
    quick) quick=1 ;;
    rows=*)
        rows=${s#rows=}
        [[ x =~ $rows ]] 2>/dev/null
        [ $? -le 1 ] || { echo "gpu.sh: $s: expected an extended regular expression" >&2; exit 2; }
        ;;
    full) ;; # true sizes, as without quick
    tests | bits | sanitizers | speed | pressure | share | big) stages="$stages $s" ;;
    *) echo "gpu.sh: $s: expected quick, full, rows=PATTERN or stages of: $all" >&2; exit 2 ;;
    esac
done
stages=${stages:-$all}
lt=$build/lowtide
[ -x "$lt" ] && [ -x "$build/tests/mkmodel" ] && [ -x "$build/tests/takevram" ] || { echo "gpu.sh: $build has no lowtide, or no tests" >&2; exit 2; }
work=$(mktemp -d) || exit 1
made=${LT_BENCH_MODELS:-$work}
[ -d "$made" ] || { echo "gpu.sh: LT_BENCH_MODELS: $made is no folder" >&2; exit 2; }
making="" taker=""
cleanup() {
    [ -n "$taker" ] && kill "$taker" 2>/dev/null
    [ -n "$making" ] && kill -- "-$making" 2>/dev/null && wait "$making" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
export XDG_CACHE_HOME=$work LOWTIDE_SHARED_DIR=$work/shared
passed=0 failed=0 not_here=0
case ${dev%%:*} in sim) card="" exact="" ;; *) card=1 exact="--attention exact" ;; esac # on sim there is one kind of attention

row() { # passed | FAILED | not here, label, text
    case $1 in passed) passed=$((passed + 1)) ;; FAILED) failed=$((failed + 1)) ;; *) not_here=$((not_here + 1)) ;; esac
    printf '%-9s %-44s %s\n' "$1" "$2" "$3" | tee -a "$work/table"
}
with() { case $1 in *:*) echo "$1,$2" ;; *) echo "$1:$2" ;; esac; } # a device and more options
last() { tail -1 "$1" 2>/dev/null | cut -c1-400; }

# --- models, made in the background in the order of their use; nobody looks at one before it has its name --------------

recipe() {
    case $1 in
    gpt-oss-20b | qwen3-30b-a3b) # types of their own
        [ -n "$quick" ] && echo "--arch ${1%%-[23]*} --layers 3 --embd 512 --experts 16 --experts-used 4 --expert-ff 2048 --type Q8_0 --type-of exps.weight=MXFP4 --ctx 4096 --repeat" |
            sed 's/--arch qwen3 /--arch qwen3moe /' || echo "--preset $1 --ctx 4096 --repeat"
        return
        ;;
    esac
    local size=${1%-*} kind=${1#*-} dims="--preset ${1%-*}"
    if [ -n "$quick" ]; then
        case $size in 7b) dims="--layers 2" ;; 13b) dims="--layers 3" ;; 20b) dims="--layers 4" ;; esac
        dims="$dims --embd 1024 --ff 2816 --heads 8 --kv-heads 1 --head-dim 128 --vocab 2000"
    fi
    echo "$dims --type $kind --ctx 4096 --repeat"
}
make_model() { [ -e "$made/$1.gguf" ] || "$build/tests/mkmodel" $(recipe "$1") -o "$made/$1.gguf" >"$work/$1.log" 2>&1 || touch "$work/$1.failed"; }
wanted=""
for s in $stages; do
    case $s in
    speed) [ -n "$rows" ] || wanted="7b-F16 7b-Q4_K 7b-Q8_0 7b-MXFP4 13b-Q4_K" ;; # else each when its row comes
    pressure | share) [[ $wanted =~ 7b-F16 ]] || wanted="$wanted 7b-F16" ;;
    esac
done
set -m # a group of its own, to end with its mkmodel
for m in $wanted; do make_model "$m"; done &
making=$!
set +m
models_ready() { [ -n "$making" ] && wait "$making"; making=""; } # measuring beside a writer would measure both
model() {
    [ -z "$rows" ] || make_model "$1"
    [ -e "$made/$1.gguf" ] && echo "$made/$1.gguf"
}
drop() { [ "$made" != "$work" ] || rm -f "$@"; } # to make room
no_model() { row FAILED "$2" "the model $1 was not made: $(last "$work/$1.log")"; }
small="--layers 4 --embd 512 --ff 1024 --heads 8 --kv-heads 4 --head-dim 64 --vocab 4000 --ctx 2048"

# --- tests -----------------------------------------------------------------------------------------------------------

why_not_managed="for cards only"
has_managed() {
    [ -n "$card" ] || return 1
    "$lt" doctor --device "$dev" --memory managed -q >"$work/managed.log" 2>&1 && return
    why_not_managed=$(last "$work/managed.log")
    return 1
}
conformance() { # label, test, devices
    [[ $1 =~ $rows ]] || return
    [ -x "$build/tests/$2" ] || { row FAILED "$1" "$build has no $2"; return; }
    LT_BUILD=$build LT_TEST_CARD=$3 LT_CONFORMANCE_DEVICES=$3 timeout 300 "$build/tests/$2" >"$work/test.log" 2>&1
    case $? in
    0) row passed "$1" "$(grep -E 'compared bit by bit|since run 20|real models among|faults met in' "$work/test.log" | tail -1)" ;;
    77) row "$([ -n "$card" ] && echo FAILED || echo not here)" "$1" "skipped: $(last "$work/test.log")" ;;
    *)
        grep -vE '^\[ +(OK|RUN)|^planted' "$work/test.log" | tail -25
        row FAILED "$1" "$(grep -E 'ERROR|FAILED' "$work/test.log" | head -1 | cut -c1-200)"
        ;;
    esac
}
stage_tests() {
    local t
    for t in test_device test_ops test_ops_linear test_ops_experts test_ops_attention test_ops_prefill test_ops_bits test_lists test_rebudget test_cases_runs test_card_fault; do
        case $card:$t in
        :test_device | :test_lists) row "not here" "$t" "for cards only" ;;
        *) conformance "$t" "$t" "$dev" ;;
        esac
    done
    if [ -n "$card" ]; then # a Hopper runs the kernels of other cards too
        for t in test_ops_prefill test_ops_linear test_ops_experts; do conformance "$t, kernels of other cards" $t "$(with "$dev" sm90a=0)"; done
    else
        for t in test_ops_prefill test_ops_linear test_ops_experts; do row "not here" "$t, kernels of other cards" "for cards only"; done
    fi
    conformance "golden logits" test_golden_session "$dev"
    for t in test_device test_rebudget; do
        if has_managed; then conformance "$t, managed memory" $t "$(with "$dev" managed=1)"; else row "not here" "$t, managed memory" "$why_not_managed"; fi
    done
}

# --- the same bits as cpu, at any budget and batch ---------------------------------------------------------------------

text="The tide goes out because the Moon pulls the sea, and comes back because the Earth turns under it."
score() { # file, name of the logits, options...
    local model=$1 name=$2
    shift 2
    rm -f "$work/$name.npy"
    "$lt" score "$model" -p "$text" -c 512 -q --logits "$work/$name.npy" "$@" >/dev/null 2>"$work/$name.err"
}
same() { # label, logits, logits...
    local label=$1 first=$2 n
    shift 2
    for n in "$first" "$@"; do
        [ -s "$work/$n.npy" ] || { row FAILED "$label" "$n: $(last "$work/$n.err")"; return; }
        cmp -s "$work/$first.npy" "$work/$n.npy" || { row FAILED "$label" "$n differs from $first"; return; }
    done
    row passed "$label" "same bits: $first $*"
}
# The least budget the plan takes, by its own word, and 8 MiB for what a context takes more or less.
least() { "$lt" plan "$1" --device "$dev" -c 512 -b 16 --json -q 2>"$work/least.err" | python3 -c 'import json,sys; print(json.load(sys.stdin)["smallest_budget_bytes"] + (8 << 20))' 2>/dev/null; }
distance() { # row's status, and how far the default attention's logits are from the cpu's
    python3 - "$work/cpu.npy" "$work/whole.npy" <<'PY'
import array, ast, sys
def rows(name):
    b = open(name, "rb").read()
    n = int.from_bytes(b[8:10], "little")
    shape = ast.literal_eval(b[10:10 + n].decode())["shape"]
    v = array.array("f")
    v.frombytes(b[10 + n:])
    return [v[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]
a, b = rows(sys.argv[1]), rows(sys.argv[2])
e = sum((x - y) ** 2 for r, s in zip(a, b) for x, y in zip(r, s)) / sum(x * x for r in a for x in r)
best = sum(max(range(len(r)), key=r.__getitem__) == max(range(len(s)), key=s.__getitem__) for r, s in zip(a, b))
print("passed" if e < 5e-3 else "FAILED", f"normalised error against cpu {e:.2e}, below 5e-3 expected; {best} of {len(a)} best tokens the same")
PY
}
locks_too_little() { grep -q 'page-locked' "$work/err"; } # sim locks within RLIMIT_MEMLOCK, which may be small
in_place() { # an answer whose tokens copy no weight
    local kind label how said tight dims="--layers 8 --embd 1024 --ff 2816 --heads 8 --kv-heads 4 --head-dim 128 --vocab 4000 --ctx 2048"
    [ -n "$card" ] || dims=$small
    for kind in Q4_K F16; do
        label="$kind, read in place"
        "$build/tests/mkmodel" $dims --type $kind \
            --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/m.gguf" >"$work/m.log" 2>&1
        tight=$(least "$work/m.gguf")
        [ -n "$card" ] || tight=$((${tight:-0} - (7 << 20))) # where nothing else is taken a model this small would fit
        for how in stream mapped; do
            "$lt" run "$work/m.gguf" -p "$text" -n 40 --temp 0 -c 512 -b 16 --device "$dev" --vram "${tight:-1}" --offload $how \
                --report "$work/$how.json" -q >"$work/$how" 2>"$work/err" && continue
            locks_too_little && row "not here" "$label" "$(last "$work/err")" || row FAILED "$label" "$(last "$work/err")"
            continue 2
        done
        said=$(python3 - "$work/stream.json" "$work/mapped.json" 2>&1 <<'PY'
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["tokens"] == b["tokens"], "ANOTHER ANSWER"
assert b["moved"]["mapped_bytes"] == (len(b["tokens"]) - 1) * b["plan"]["mapped_bytes"] > 0, f"not all was read in place: {b['moved']}"
print(f"same answer; {b['plan']['mapped_bytes']} bytes a token")
PY
        ) && row passed "$label" "$said" || row FAILED "$label" "$(echo "$said" | tail -1)"
    done
}
compare() { # label, file
    local tight said
    score "$2" cpu --device cpu
    score "$2" exact --device "$dev" $exact
    same "$1, exact" cpu exact
    tight=$(least "$2")
    score "$2" whole --device "$dev"
    score "$2" batch7 --device "$dev" -b 7
    score "$2" least --device "$dev" -b 16 --vram "${tight:-1}" # without a plan it fails, and says so
    same "$1" whole batch7 least
    if has_managed; then
        score "$2" managed --device "$dev" --memory managed
        same "$1, managed memory" whole managed
    fi
    said=$(distance 2>"$work/distance.err") && row "${said%% *}" "$1, default attention" "${said#* }" || row FAILED "$1, default attention" "$(last "$work/distance.err")"
}
# Twenty prompts, each answered alone, greedily: with the exact kind of attention not one token may differ.
prompts() { # file, name, options...
    local model=$1 name=$2 i words=(A river of light When the old clock struck thirteen nobody in the small town noticed because they were all asleep or far away by sea)
    shift 2
    for i in $(seq 20); do
        "$lt" run "$model" -p "${words[*]:i:$((i % 5 + 2))}" -n 24 --temp 0 -c 256 -q "$@" 2>"$work/$name.err" || return
        echo "== $i"
    done >"$work/$name.answers"
}
twenty() { # label, file
    local flash
    for flash in cpu exact flash; do
        case $flash in cpu) prompts "$2" cpu --device cpu ;; exact) prompts "$2" exact --device "$dev" $exact ;; *) prompts "$2" flash --device "$dev" ;; esac ||
            { row FAILED "$1, 20 prompts" "$flash: $(last "$work/$flash.err")"; return; }
    done
    if cmp -s "$work/cpu.answers" "$work/exact.answers"; then
        row passed "$1, 20 prompts" "the cpu's answers, $(wc -c <"$work/cpu.answers") bytes; by default attention $(python3 - "$work/cpu.answers" "$work/flash.answers" <<'PY'
import re, sys
a, b = (re.split(r"^== \d+\n", open(f).read(), flags=re.M) for f in sys.argv[1:])
print(sum(x == y for x, y in zip(a[:20], b[:20])), "of 20")
PY
        )"
    else
        row FAILED "$1, 20 prompts" "other answers than the cpu's"
    fi
}
stage_bits() {
    local arch
    for arch in llama qwen2 qwen3 gemma2 gemma3 phi3; do
        if "$build/tests/mkmodel" --arch $arch $small --type Q4_K --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/m.gguf" >"$work/m.log" 2>&1; then
            compare "$arch" "$work/m.gguf"
        else
            row FAILED "$arch" "mkmodel: $(last "$work/m.log")"
        fi
    done
    for arch in gpt-oss qwen3moe; do
        if "$build/tests/mkmodel" --arch $arch $small --experts 16 --experts-used 4 --expert-ff 256 --type Q8_0 --type-of 'exps.weight=MXFP4' --seed 7 \
            -o "$work/m.gguf" >"$work/m.log" 2>&1; then
            compare "$arch" "$work/m.gguf"
        else
            row FAILED "$arch" "mkmodel: $(last "$work/m.log")"
        fi
    done
    in_place
    local name
    for name in LT_TEST_SMOLLM2 LT_TEST_GEMMA3; do
        if [ -n "${!name:-}" ]; then compare "$(basename "${!name}")" "${!name}" && twenty "$(basename "${!name}")" "${!name}"; else row "not here" "a real model" "$name names none"; fi
    done
}

no_sanitizer() { # why there is none
    [ -n "$card" ] || { echo "for cards only"; return; }
    command -v compute-sanitizer >/dev/null || echo "compute-sanitizer is not installed"
}
findings() { grep -oE 'ERROR SUMMARY: [0-9]+ error|RACECHECK SUMMARY: [0-9]+ hazard' "$1" | tail -1; }
# A conformance suite under a tool, in a shell of its own for xargs; of those that take too long a part: all under racecheck, the slowest.
sanitize() { # tool:suite
    case $1 in racecheck:test_ops_bits) ;; racecheck:*) export LT_CONFORMANCE_PART=1/8 ;; esac
    [ "${1#*:}" = test_lists ] && export LT_CONFORMANCE_PART=3/6
    LT_TEST_ONLY='*card*' LT_TEST_CARD=$dev LT_CONFORMANCE_DEVICES=$dev LT_BUILD=$build timeout -k 10 240 compute-sanitizer --tool "${1%%:*}" --error-exitcode 9 \
        "$build/tests/${1#*:}" >"$work/$1.log" 2>&1
    echo $? >"$work/$1.rc"
}
sanitized() { # label, tool:suite
    local log=$work/$2.log rc compared
    rc=$(cat "$work/$2.rc" 2>/dev/null)
    compared=$(grep 'compared bit by bit' "$log" | tail -1)
    case $rc in
    0) row passed "$1" "$(findings "$log")${compared:+; $compared}" ;;
    77) row FAILED "$1" "skipped: $(last "$log")" ;;
    124 | 137) row FAILED "$1" "not done in 240 s; $(grep '^\[ RUN' "$log" | tail -1)" ;;
    *) row FAILED "$1" "$(grep -E '=====|ERROR|FAILED' "$log" | head -3 | tr '\n' ' ' | cut -c1-300), exit status ${rc:-none}" ;;
    esac
}
stage_sanitizers() {
    local tool kind label t why wanted=()
    why=$(no_sanitizer)
    for tool in memcheck racecheck initcheck; do
        for kind in Q4_K F16; do
            label="$tool, a $kind model's prompt and 8 tokens"
            [[ $label =~ $rows ]] || continue
            [ -z "$why" ] || { row "not here" "$label" "$why"; continue; }
            "$build/tests/mkmodel" --arch llama --layers 2 --embd 256 --ff 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 1024 --type $kind \
                --type-of 'ffn_down=Q6_K' --seed 7 -o "$work/s.gguf" >"$work/s.log" 2>&1
            if timeout 120 compute-sanitizer --tool $tool --error-exitcode 9 "$lt" run "$work/s.gguf" -p "$text" -n 8 --temp 0 -c 512 --device "$dev" \
                --profile "$work/sim-profile.json" -q >"$work/s.log" 2>&1; then
                row passed "$label" "$(findings "$work/s.log")"
            else
                row FAILED "$label" "$(grep -E '=====|lowtide:' "$work/s.log" | head -3 | tr '\n' ' ' | cut -c1-300)"
            fi
        done
    done
    suite_label() { # tool:suite
        case $1 in *:test_lists) echo "${1%%:*}, test_lists, every 6th model" ;; *:test_rebudget) echo "${1%%:*}, test_rebudget, on the card" ;; racecheck:test_ops_bits) echo "racecheck, test_ops_bits" ;; racecheck:test_ops*) echo "racecheck, ${1#*:}, every 8th case" ;; *) echo "${1%%:*}, ${1#*:}" ;; esac
    }
    for tool in memcheck racecheck initcheck; do
        for t in test_ops test_ops_bits test_ops_linear test_ops_experts test_ops_attention test_ops_prefill test_lists test_rebudget; do
            [[ $(suite_label $tool:$t) =~ $rows ]] && wanted+=($tool:$t)
        done
    done
    [ ${#wanted[@]} -gt 0 ] || return
    if [ -z "$why" ]; then
        export -f sanitize
        printf '%s\n' "${wanted[@]}" | build=$build dev=$dev work=$work xargs -P 6 -I{} bash -c 'sanitize "$1"' sanitize {}
    fi
    for t in "${wanted[@]}"; do
        [ -z "$why" ] && sanitized "$(suite_label $t)" $t || row "not here" "$(suite_label $t)" "$why"
    done
}

# --- speed and budget --------------------------------------------------------------------------------------------------

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
# Budgets of a dry run are those of models some hundred times smaller.
scaled() {
    local n=${1%[MG]}
    case $1 in *G) n=$((n * 1024)) ;; esac
    [ -n "$quick" ] && echo "$((n / 128))M" || echo "$1"
}
speed() { # label, model, budget, tokens, options...
    local label="$1 at $3" file budget n=$4 prompt="--prompt-tokens 512" said least=0
    [ -n "$card" ] && [ -z "$quick" ] && least=${at_least:-0} # tokens a second
    [[ $label =~ $rows ]] || return
    file=$(model "$2") || { no_model "$2" "$label"; return; }
    budget=$(scaled "$3")
    [ -n "$quick" ] && prompt="--prompt-tokens 64" n=$((n < 6 ? n : 6))
    shift 4
    watched "$lt" bench "$file" --device "$dev" --vram "$budget" $prompt -n "$n" -r 2 --json -q "$@" >"$work/b.json" 2>"$work/err" ||
        { locks_too_little && row "not here" "$label" "$(last "$work/err")" || row FAILED "$label" "$(last "$work/err")"; return; }
    said=$(python3 - "$work/b.json" "$(cat "$work/most")" "$least" 2>"$work/err" <<'PY'
import json, sys
j, most, least = json.load(open(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
r = {x["test"]: x for x in j["results"]}
peak, predicted, budget = j["peak_bytes"], j["plan"]["predicted_peak_bytes"], j["budget_bytes"]
over = most << 20 > budget or peak > budget or abs(peak / predicted - 1) > 0.02 or r['decode']['tps'] < least
print("FAILED" if over else "passed",
      f"prefill {r['prefill']['tps']:8.1f} ({r['prefill']['of_floor']:4.0%} of floor)  decode {r['decode']['tps']:7.2f} ({r['decode']['of_floor']:4.0%})"
      f"  peak {peak / 2**20:.0f} of {budget / 2**20:.0f} MiB, {f'driver saw {most}' if most else 'no driver to ask'}, predicted {peak / predicted - 1:+.2%}")
PY
    ) && row "${said%% *}" "$label" "${said#* }" || row FAILED "$label" "$(last "$work/err")"
}
# One token by a whole process, in ms; the machine's rates are in the cache by then.
one_token() {
    local t0
    t0=$(date +%s%N)
    "$lt" run "$1" -p tide -n 1 --temp 0 -c 1024 --vram "$(scaled 4G)" --device "$dev" -q >/dev/null 2>"$work/err" && echo $((($(date +%s%N) - t0) / 1000000))
}
first_token() {
    local file ms status=passed label="first token from the page cache, 4 GiB"
    [[ $label =~ $rows ]] || return
    file=$(model 7b-F16) || { no_model 7b-F16 "$label"; return; }
    "$lt" doctor --device "$dev" -q >/dev/null 2>&1
    cat "$file" >/dev/null
    ms=$(one_token "$file") || { row FAILED "$label" "$(last "$work/err")"; return; }
    [ -n "$card" ] && [ -z "$quick" ] && [ "$ms" -gt 2000 ] && status=FAILED
    row $status "$label" "$ms ms, the whole process, below 2000 expected of a card and a model of true size"
}
drop_caches() { sync && { echo 3 >/proc/sys/vm/drop_caches; } 2>"$work/err"; }
# From the disk, beside the disk's own rate for the same file just before; the command and its libraries come from there as well.
cold_start() {
    local file ms bytes t0 disk_ms said label="cold start to first token, 4 GiB"
    [[ $label =~ $rows ]] || return
    file=$(model 7b-F16) || { no_model 7b-F16 "$label"; return; }
    "$lt" doctor --device "$dev" -q >/dev/null 2>&1
    drop_caches || { row "not here" "$label" "the page cache cannot be dropped: $(last "$work/err")"; return; }
    t0=$(date +%s%N)
    dd if="$file" of=/dev/null iflag=direct bs=16M status=none 2>"$work/err" || { row "not here" "$label" "no reading past the page cache: $(last "$work/err")"; return; }
    disk_ms=$((($(date +%s%N) - t0) / 1000000))
    drop_caches
    ms=$(one_token "$file") || { row FAILED "$label" "$(last "$work/err")"; return; }
    bytes=$(stat -L -c %s "$file")
    said=$(python3 - "$ms" "$disk_ms" "$bytes" "${card:+${quick:-judge}}" 2>"$work/err" <<'PY'
import sys
ms, disk_ms, size = (max(int(v), 1) for v in sys.argv[1:4])
print("FAILED" if sys.argv[4] == "judge" and ms / disk_ms > 1.2 else "passed",
      f"{ms / 1e3:.2f} s; {size / 2**30:.2f} GiB at the disk's {size / disk_ms / 1e6:.2f} GB/s are {disk_ms / 1e3:.2f} s: {ms / disk_ms:.2f} times that, "
      "below 1.2 expected of a card and a model of true size")
PY
    ) && row "${said%% *}" "$label" "${said#* }" || row FAILED "$label" "$(last "$work/err")"
}
allocation() {
    [[ allocation =~ $rows ]] || return
    "$build/tests/bench_alloc" "$dev" >"$work/alloc" 2>&1 && row passed allocation "$(last "$work/alloc")" || row FAILED allocation "$(last "$work/alloc")"
}
stage_speed() {
    local b long=2048
    [ -n "$quick" ] && long=256
    models_ready
    for b in 2G 4G 8G; do speed "7b F16" 7b-F16 $b 12 -c 1024; done
    speed "7b F16, read in place" 7b-F16 4G 12 -c 1024 --offload mapped
    speed "7b F16" 7b-F16 16G 128 -c 1024
    speed "7b F16, batch 2048" 7b-F16 4G 4 -c $((long + 128)) -b $long --prompt-tokens $long
    first_token
    cold_start
    for b in 1536M 2G 4G; do speed "7b Q4_K" 7b-Q4_K $b 24 -c 1024; done
    speed "7b Q4_K" 7b-Q4_K 8G 128 -c 1024
    if has_managed; then # beside the rows of the same budgets
        speed "7b F16, managed memory" 7b-F16 8G 12 -c 1024 --memory managed
        speed "7b Q4_K, managed memory" 7b-Q4_K 8G 128 -c 1024 --memory managed
    elif [[ "7b, managed memory" =~ $rows ]]; then
        row "not here" "7b, managed memory" "$why_not_managed"
    fi
    speed "7b Q4_K, read in place" 7b-Q4_K 2G 24 -c 1024 --offload mapped
    speed "7b Q8_0" 7b-Q8_0 4G 24 -c 1024
    speed "7b Q8_0" 7b-Q8_0 10G 128 -c 1024
    speed "7b MXFP4" 7b-MXFP4 2G 24 -c 1024
    speed "7b MXFP4" 7b-MXFP4 8G 128 -c 1024
    for b in 3G 6G; do speed "13b Q4_K" 13b-Q4_K $b 12 -c 1024; done
    speed "13b Q4_K" 13b-Q4_K 12G 128 -c 1024
    allocation
    drop "$work"/7b-[QM]*.gguf "$work"/13b-*.gguf
}
stage_big() {
    local b free need=42000000 # KiB of the file, with room for what runs beside
    models_ready
    drop "$work"/*.gguf
    [ -n "$rows" ] || make_model gpt-oss-20b
    for b in 6G 12G; do speed "gpt-oss 20b" gpt-oss-20b $b 64 -c 2048; done
    at_least=30 speed "gpt-oss 20b, 30 tok/s" gpt-oss-20b 8G 64 -c 2048
    drop "$work/gpt-oss-20b.gguf"
    [ -n "$rows" ] || make_model qwen3-30b-a3b
    speed "qwen3 30b-a3b" qwen3-30b-a3b 8G 64 -c 2048
    drop "$work/qwen3-30b-a3b.gguf"
    free=$(df -Pk "$made" | awk 'NR == 2 {print $4}')
    [[ "20b F16 at 8G" =~ $rows ]] || return
    [ -z "$quick" ] && [ "$free" -lt $need ] && { row FAILED "20b F16 at 8G" "$((need >> 10)) MiB of disk are needed, $((free >> 10)) are free"; return; }
    local t0=$SECONDS
    make_model 20b-F16
    echo "20b-F16 was made in $((SECONDS - t0)) s"
    speed "20b F16" 20b-F16 8G 12 -c 1024
    drop "$work/20b-F16.gguf"
}

# --- neighbours --------------------------------------------------------------------------------------------------------

# A card that processes share, and a model that feels it: on sim small ones. Sets shared, neighbour, file.
find_shared() {
    models_ready
    if [ -z "$card" ]; then
        shared="sim:vram=96M,h2d=2G,poison=off,threads=1,card=$work/card" neighbour=$shared file=$work/small.gguf
        [ -e "$file" ] || "$build/tests/mkmodel" --arch llama $small --type F16 --seed 7 -o "$file" >"$work/small.log" 2>&1
    else
        shared=$dev neighbour=$(with "$dev" kernels=0) file=$made/7b-F16.gguf
    fi
    [ -e "$file" ]
}
stage_pressure() {
    local shared neighbour file label budget=8G reserve=6G left=1G n=100 hold=5 trouble="" said i
    [ -n "$card" ] || budget=20M reserve=12M left=2M n=300 hold=2
    label="pressure at $budget, reserve $reserve"
    find_shared || { no_model 7b-F16 "$label"; return; }
    answer() { "$lt" run "$file" -p tide --temp 0 -n $n -c 1400 --device "$shared" --vram $budget --reserve-vram $reserve --report "$work/$1.json" -q 2>"$work/$1.err"; }
    answer quiet >"$work/quiet" || { row FAILED "$label" "$(last "$work/quiet.err")"; return; }
    answer loud >"$work/loud" &
    local loud=$!
    for i in $(seq 300); do
        [ -s "$work/loud" ] && break
        kill -0 $loud 2>/dev/null || break
        sleep 0.1
    done
    sleep 1
    "$build/tests/takevram" "$neighbour" $left $hold $reserve >"$work/took" 2>&1 || trouble="the neighbour: $(last "$work/took"); "
    wait $loud || trouble="$trouble$(last "$work/loud.err"); "
    cat "$work/took"
    cmp -s "$work/quiet" "$work/loud" || trouble="${trouble}ANOTHER ANSWER; "
    said=$(python3 - "$work/loud.json" 2>&1 <<'PY'
import json, sys
j = json.load(open(sys.argv[1]))
assert j["budget_changes"], "the budget never changed"
print("same answer; " + "; ".join(f"{c['why']}: {c['from'] / 2**20:.0f} -> {c['to'] / 2**20:.0f} MiB in {c['seconds']:.3f} s, {c['decode_tps_before']:.2f} tok/s before" for c in j["budget_changes"])
      + f"; {j['decode_tps_after_change']:.2f} tok/s after; peak {j['peak_bytes'] / 2**20:.0f} of {j['budget_bytes'] / 2**20:.0f} MiB")
PY
    ) || trouble="$trouble$(echo "$said" | tail -1); "
    [ -z "$trouble" ] && row passed "$label" "$said" || row FAILED "$label" "$trouble"
}

# What all Lowtide processes hold of the card together, in MiB, as each says of itself.
held_together() { "$lt" top --json 2>/dev/null | python3 -c 'import json,sys; print(sum(p["committed_bytes"] for p in json.load(sys.stdin)["processes"]) >> 20)' 2>/dev/null; }
share_pair() { # label, first, second, seconds between
    local label=$1 a=$2 b=$3 most=0 over=0 now trouble="" x pa pb said
    share_answer "$a" & pa=$!
    sleep "$4"
    share_answer "$b" & pb=$!
    while kill -0 $pa 2>/dev/null || kill -0 $pb 2>/dev/null; do # pages are a tenth of a second old: once over is no proof
        now=$(held_together)
        [ "${now:-0}" -gt $most ] && most=$now
        [ "${now:-0}" -gt $limit ] && over=$((over + 1)) || over=0
        [ $over -ge 5 ] && trouble="$now MiB held together, $limit are there; "
        sleep 0.1
    done
    wait $pa || trouble="$trouble$a: $(last "$work/$a.err"); "
    wait $pb || trouble="$trouble$b: $(last "$work/$b.err"); "
    for x in one two; do cmp -s "$work/$x.alone" "$work/$x" || trouble="${trouble}ANOTHER ANSWER to $x; "; done
    said=$(python3 - "$work/one.json" "$work/two.json" 2>&1 <<'PY'
import json, sys
both = [json.load(open(f)) for f in sys.argv[1:]]
assert any(j["budget_changes"] for j in both), "they never met on the card"
for name, j in zip(("one", "two"), both):
    changes = "".join(f", {c['why']} -> {c['to'] / 2**20:.0f}" for c in j["budget_changes"])
    print(f"{name}: {j['plan']['budget_bytes'] / 2**20:.0f} MiB{changes}, {j['decode']['tps']:.2f} tok/s", end="; ")
PY
    ) || trouble="$trouble$(echo "$said" | tail -1); "
    [ -z "$trouble" ] && row passed "$label" "answers as alone; at most $most of $limit MiB together; $said" || row FAILED "$label" "$trouble"
}
share_answer() { "$lt" run "$file" -p "$1" --temp 0 -n $n -c 1400 --device "$shared" --report "$work/$1.json" -q >"$work/$1" 2>"$work/$1.err"; }
stage_share() {
    local shared neighbour file n=40 limit=96 first second wait x
    find_shared || { no_model 7b-F16 "sharing"; return; }
    if [ -n "$card" ]; then # a card of 10 GiB: less than one of them wants
        "$build/tests/takevram" "$neighbour" 10G 3600 >"$work/took" 2>&1 &
        taker=$! limit=$((10240 + 16)) # each says 8 MiB more than its context took
        for x in $(seq 200); do [ -s "$work/took" ] && break; sleep 0.1; done
        grep -q '^took' "$work/took" || { row FAILED "sharing" "the neighbour: $(last "$work/took")"; return; }
    else
        shared="sim:vram=24M,h2d=2G,poison=off,threads=1,card=$work/card2" limit=24 n=1000
    fi
    for x in one two; do
        share_answer $x && mv "$work/$x" "$work/$x.alone" || { row FAILED "sharing: $x alone" "$(last "$work/$x.err")"; return; }
    done
    x=$(python3 -c "import json,sys; j = json.load(open(sys.argv[1])); print(f'{j[\"plan\"][\"predicted_peak_bytes\"] >> 20} MiB, {j[\"decode\"][\"tps\"]:.2f} tok/s')" "$work/one.json" 2>&1) &&
        row passed "sharing: each alone" "$x" || row FAILED "sharing: each alone" "$(echo "$x" | tail -1)"
    for first in one two; do
        [ $first = one ] && second=two || second=one
        for wait in 0 0.3; do share_pair "sharing: $second $wait s behind $first" $first $second $wait; done
    done
    [ -n "$taker" ] && kill "$taker" 2>/dev/null && wait "$taker" 2>/dev/null
    taker=""
}

nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max --format=csv,noheader 2>/dev/null
for s in $all; do # in this order, whatever was asked first: big needs the disk of the others
    case " $stages " in *" $s "*) ;; *) continue ;; esac
    echo "== $s on $dev"
    t0=$SECONDS
    "stage_$s"
    echo "   $s took $((SECONDS - t0)) s"
done
echo "== table"
cat "$work/table"
echo "gpu:$stages: $passed passed, $failed FAILED, $not_here not here"
[ $((passed + failed + not_here)) -gt 0 ] || { echo "gpu.sh: no row of these stages matches rows=$rows" >&2; exit 2; }
[ $failed = 0 ]
