#!/usr/bin/env bash
# Measures this machine: the program's own benchmarks (`trireme bench`) of matrix products and of collectives between two workers,
# and, once make train has prepared its data, the loader, alone and beside numpy's memmap.
# usage: tools/bench.sh
source "$(dirname "$0")/lib.sh"

tools/setup.sh build
tools/venv.sh
tools/build.sh release trireme
build/trireme bench matmul
build/trireme bench collectives --workers 2
if [ -e data/sotu/train/manifest.json ]; then
  build/trireme bench loader data/sotu/train
  tools/venv.sh test
  tools/build.sh bench bench_loader
  .venv/bin/python bench/loader.py build-bench/bench_loader data/sotu/train
fi
