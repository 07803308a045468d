#!/bin/sh
# Runs every fuzz target for so many seconds on its corpus; the first crash stops the run, its input kept.
#   tools/fuzz.sh BUILD SECONDS [PATTERN OF TARGETS]
set -eu
build=$1 seconds=$2 pattern=${3:-fuzz_*}
ran=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in "$build"/fuzz/$pattern; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    noun=$(basename "$target" | sed 's/^fuzz_//')
    mkdir "$work/$noun"
    seeds=$work/$noun
    [ -d "fuzz/corpus/$noun" ] && seeds="$seeds fuzz/corpus/$noun"
    # shellcheck disable=SC2086
    if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$build/crash-$noun-" $seeds >"$work/log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
        echo "fuzz $noun: clean, $runs runs in $seconds s"
    else
        tail -60 "$work/log"
        echo "fuzz $noun: FAILED; the input is $(ls "$build"/crash-"$noun"-* 2>/dev/null | tail -1)"
        exit 1
    fi
    ran=$((ran + 1))
done
[ $ran -gt 0 ] || { echo "$0: $build/fuzz/$pattern: no such target" >&2; exit 1; }
