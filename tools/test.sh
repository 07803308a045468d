#!/bin/sh
# Runs the tests; real models are fetched for those that want them, and those skip with a reason otherwise.
#   tools/test.sh BUILD [CTEST ARGUMENTS]
set -eu
build=$1
shift
LT_TEST_SMOLLM2=${LT_TEST_SMOLLM2:-$(LT_COMMAND=$build/lowtide tools/fetch-model.sh smollm2 || true)}
LT_TEST_GEMMA3=${LT_TEST_GEMMA3:-$(tools/fetch-model.sh gemma3 || true)}
export LT_TEST_SMOLLM2 LT_TEST_GEMMA3
[ -n "$LT_TEST_SMOLLM2" ] || unset LT_TEST_SMOLLM2
[ -n "$LT_TEST_GEMMA3" ] || unset LT_TEST_GEMMA3
exec ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(nproc)" "$@"
