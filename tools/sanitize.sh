#!/bin/sh
# The tests that a sanitizer build runs: all but those that measure or need minutes without one.
set -eu
build=$1
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
case $build in
*tsan) select="-L unit|fault|cases|conformance -R device|team|pool|residency|ring|store|queue|engine|session|trace|cases";;
*) select="-L unit|fault|cases|conformance|example";;
esac
# shellcheck disable=SC2086
exec ctest --test-dir "$build" --output-on-failure -j "$(nproc)" $select
