#!/usr/bin/env bash
# Configures and builds one of the presets of CMakePresets.json.
# usage: tools/build.sh [PRESET [TARGET...]]      release and all by default; JOBS=N sets how many compilers run at once
source "$(dirname "$0")/lib.sh"

preset=${1:-release}
shift || true
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log"
  die 2 "CMake stopped; its message is above"
}
cmake --build --preset "$preset" --parallel "$(build_jobs)" ${1:+--target "$@"}
