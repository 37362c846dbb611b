#!/usr/bin/env bash
# Builds everything and runs the tests.
# usage: tools/test.sh [--soak] [CTEST ARGUMENT...]
#   --soak   runs the long sweeps whole, and the tests that only make sense so; hours, not minutes
# environment: TEST_JOBS=2, and what tools/setup.sh, tools/venv.sh and tools/build.sh take
source "$(dirname "$0")/lib.sh"

preset=release
if [ "${1:-}" = --soak ]; then
  preset=soak
  shift
fi
tools/setup.sh build test
[ "$preset" != soak ] || tools/setup.sh soak || say "Going on without: the test that needs it says so and is skipped"
tools/venv.sh test
tools/fetch-tokenizers.sh
tools/build.sh "$preset"
ctest --preset "$preset" --parallel "${TEST_JOBS:-2}" "$@"
