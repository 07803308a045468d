#!/bin/sh
# Proves that red things turn the scripts red: plants a failing test, memory errors, a race, a crashing
# fuzz target and offences of style, and expects each script to fail for that very reason. Works on the
# build folders that exist; those named by make and CI do.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
planted=""
restore() {
    for build in $planted; do
        cmake -DLT_PLANTED=OFF "$build" >/dev/null
    done
    rm -rf "$work"
}
trap restore EXIT

# red WHAT REASON COMMAND...: the command fails, and its output has the reason.
red() {
    what=$1 reason=$2
    shift 2
    if "$@" >"$work/out" 2>&1; then
        echo "selftest: $what: $1 stayed green" && exit 1
    fi
    grep -q -- "$reason" "$work/out" || { cat "$work/out"; echo "selftest: $what: $1 is red, but does not say '$reason'"; exit 1; }
    echo "selftest: $what turns $1 red"
}
green() {
    "$@" >"$work/out" 2>&1 || { cat "$work/out"; echo "selftest: $1 is red without a bug"; exit 1; }
}
plant() {
    planted="$planted $1"
    dir=$1
    shift
    cmake -DLT_PLANTED=ON "$dir" >/dev/null
    cmake --build "$dir" --target "$@" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
}

for build in build/release build/asan-ubsan build/tsan; do
    [ -f $build/CMakeCache.txt ] || { echo "selftest: $build is not there, left out"; continue; }
    case $build in
    build/release)
        plant $build planted_healthy planted_assert
        green tools/test.sh $build -R '^planted_healthy$'
        red "a failing test" '0x4 != 0x5' tools/test.sh $build -R '^planted_assert$'
        red "a test that is not there" 'No tests were found' tools/test.sh $build -R '^planted_nothing$';;
    build/asan-ubsan)
        plant $build planted_healthy planted_overflow planted_leak planted_shift
        green tools/sanitize.sh $build -R '^planted_healthy$'
        red "a read behind a block" heap-buffer-overflow tools/sanitize.sh $build -R '^planted_overflow$'
        red "a leak" 'detected memory leaks' tools/sanitize.sh $build -R '^planted_leak$'
        red "undefined arithmetic" 'shift exponent' tools/sanitize.sh $build -R '^planted_shift$';;
    build/tsan)
        plant $build planted_healthy planted_race
        green tools/sanitize.sh $build -R '^planted_healthy$'
        red "a race" 'data race' tools/sanitize.sh $build -R '^planted_race$';;
    esac
done
if [ -x build/fuzz/fuzz/planted_crash ]; then
    red "a crashing fuzz target" 'FAILED; the input is build/fuzz/crash-planted_crash-' tools/fuzz.sh build/fuzz 60 planted_crash
    rm -f build/fuzz/crash-planted_crash-*
else
    echo "selftest: build/fuzz is not there, left out"
fi

mkdir -p "$work/tree/src/memory" "$work/tree/docs"
echo 'int lt__one(void);' >"$work/tree/src/memory/one.h"
green tools/check.py "$work/tree"
echo '#include "lowtide/session.h"' >"$work/tree/src/memory/one.h"
red "a wrong arrow" 'memory must not include' tools/check.py "$work/tree"
awk 'BEGIN { for (i = 0; i < 1201; i++) print "int lt__" i "(void);" }' >"$work/tree/src/memory/one.h"
red "a file too long" '1201 lines' tools/check.py "$work/tree"
awk 'BEGIN { print "int lt__long(void)\n{"; for (i = 0; i < 120; i++) print "    step();"; print "}" }' >"$work/tree/src/memory/one.h"
red "a function too long" 'a function of' tools/check.py "$work/tree"
rm "$work/tree/src/memory/one.h"
printf 'see /wo%s/notes\n' rk >"$work/tree/docs/one.md"
red "a path of one machine" 'holds on one machine' tools/check.py "$work/tree"
echo "selftest: done"
