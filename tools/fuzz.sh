#!/bin/sh
# Runs every fuzz target for so many seconds on its corpus; the first crash stops the run, its input kept.
set -eu
build=$1 seconds=$2
for target in "$build"/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    noun=$(basename "$target" | sed 's/^fuzz_//')
    work=$(mktemp -d)
    mkdir "$work/found"
    seeds=$work/found
    [ -d "fuzz/corpus/$noun" ] && seeds="$seeds fuzz/corpus/$noun"
    # shellcheck disable=SC2086
    if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$build/crash-$noun-" $seeds >"$work/log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
        echo "fuzz $noun: clean, $runs runs in $seconds s"
    else
        tail -60 "$work/log"
        echo "fuzz $noun: FAILED; the input is $build/crash-$noun-*"
        exit 1
    fi
    rm -rf "$work"
done
