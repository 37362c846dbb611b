#!/usr/bin/env bash
# Runs the unit tests under the sanitizers: address and undefined behaviour over everything, threads over the parts without torch.
# usage: tools/sanitize.sh [asan|tsan]...      both by default
source "$(dirname "$0")/lib.sh"

tools/setup.sh build test
tools/venv.sh
# The sanitizers' maps collide with the addresses that a kernel with much address randomisation hands out; without it they do not.
# A container may forbid the switch, and then does without.
fixed_addresses=(setarch "$(uname -m)" --addr-no-randomize)
"${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()

[ $# -gt 0 ] || set -- asan tsan
for preset in "$@"; do
  heading "$preset"
  tools/build.sh "$preset" trireme_unit_tests
  "${fixed_addresses[@]}" ctest --preset "$preset" --parallel "${TEST_JOBS:-2}"
done
