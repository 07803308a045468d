#!/bin/sh
# The tests of a sanitizer build. What is left out computes for minutes there and shares nothing between
# threads, or looks at what a sanitizer changes (exports, timing); a new test is in by itself.
#   tools/sanitize.sh BUILD [CTEST ARGUMENTS INSTEAD OF THE SELECTION]
set -eu
build=$1
shift
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1
if [ $# = 0 ]; then
    case $build in
    *tsan) set -- -L 'unit|fault|cases|conformance|example' \
        -E 'dtype|block|op$|bits|tokenizer|chat|text|gguf|safetensors|hostile|model$|graph|suballoc|sampler|cases_plan|ops_attention|ops_experts|ops_linear|ops_prefill';;
    *) set -- -L 'unit|fault|cases|conformance|example' -E 'ops_prefill';; # test_ops_attention runs the same code
    esac
fi
exec ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(nproc)" "$@"
