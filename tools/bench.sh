#!/usr/bin/env bash
# Measures this machine and our kernels: the program's own benchmarks (`trireme bench`; that of the loader needs the data of
# make train), then our loader beside numpy's memmap on the same data.
# usage: tools/bench.sh
source "$(dirname "$0")/lib.sh"

tools/setup.sh build
tools/venv.sh
tools/build.sh release trireme
build/trireme bench matmul
[ ! -e data/sotu/train/manifest.json ] || build/trireme bench loader data/sotu/train
if [ -e data/sotu/train/manifest.json ]; then
  tools/venv.sh test
  tools/build.sh bench bench_loader
  .venv/bin/python bench/loader.py build-bench/bench_loader data/sotu/train
fi
