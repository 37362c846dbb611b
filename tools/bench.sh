#!/usr/bin/env bash
# Measures this machine and our kernels: the program's own benchmarks (`trireme bench`; that of the loader needs the data of
# make train), then the micro-benchmarks under bench/.
# usage: tools/bench.sh
source "$(dirname "$0")/lib.sh"

tools/setup.sh build
tools/venv.sh
tools/build.sh release trireme
build/trireme bench matmul
[ ! -e data/sotu/train/manifest.json ] || build/trireme bench loader data/sotu/train
if [ -e bench/CMakeLists.txt ]; then
  tools/setup.sh bench
  tools/build.sh bench
  for program in build-bench/bench/*; do
    [ ! -x "$program" ] || [ -d "$program" ] || "$program"
  done
fi
