#!/usr/bin/env bash
# Measures this machine: the program's own benchmarks (`trireme bench`) of matrix products and of collectives between two workers, these
# beside gloo and Open MPI as well, and every fused operation beside ATen's.
# Once make train has prepared its data, also, each beside what others use: the loader beside numpy's memmap, the tokenizer beside
# tiktoken, training with two workers beside PyTorch's DDP and FSDP (docs/benchmarks.md).
# usage: tools/bench.sh [PART...]      PART: matmul ops collectives loader tokenizer step train data_parallel; all by default
# environment: ROUNDS=20 of the comparisons of training, 15 to 30 seconds each; CONFIG=configs/bench/llama-30m.toml of step and data_parallel
source "$(dirname "$0")/lib.sh"

data=data/sotu
parts=("$@")
[ $# -gt 0 ] || parts=(matmul ops collectives loader tokenizer step train data_parallel)

needs_data() { [ -e "$1" ] || die 2 "$2 needs $1, which make train prepares"; }

ops() {
  tools/build.sh bench bench_ops
  # As the program has it: idle threads do not take the processor from others.
  GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000} build-bench/bench_ops
}

loader() {
  needs_data "$data/train/manifest.json" loader
  build/trireme bench loader "$data/train"
  tools/build.sh bench bench_loader
  .venv/bin/python -B bench/loader.py build-bench/bench_loader "$data/train"
}

collectives() {
  tools/build.sh bench bench_collectives_shm
  # Where MPI is not installed there is no such program, and gloo alone is beside ours.
  cmake --build build-bench --target bench_collectives_mpi >/dev/null 2>&1 || say "without Open MPI (packages libopenmpi-dev, openmpi-bin)"
  .venv/bin/python -B bench/collectives.py build-bench --rounds 5
}

tokenizer() {
  needs_data "$data/text" tokenizer
  tools/build.sh release test_tokenizer_pipe
  .venv/bin/python -B bench/tokenizer.py build/tests/test_tokenizer_pipe "$data/text"
}

step() {
  needs_data "$data/train/manifest.json" step
  .venv/bin/python -B bench/step.py build/trireme "${CONFIG:-configs/bench/llama-30m.toml}" --rounds "${ROUNDS:-20}"
}

train() {
  needs_data "$data/train/manifest.json" train
  .venv/bin/python -B bench/train_ddp.py build/trireme configs/sotu.toml --rounds "${ROUNDS:-20}"
}

data_parallel() {
  needs_data "$data/train/manifest.json" data_parallel
  .venv/bin/python -B bench/data_parallel.py build/trireme "${CONFIG:-configs/bench/llama-30m.toml}" --rounds "${ROUNDS:-20}"
}

for part in "${parts[@]}"; do
  case $part in matmul | ops | collectives | loader | tokenizer | step | train | data_parallel) ;; *) die 2 "there is no part $part; there are matmul, ops, collectives, loader, tokenizer, step, train, data_parallel" ;; esac
done
tools/setup.sh build bench
tools/venv.sh test
tools/build.sh release trireme
for part in "${parts[@]}"; do
  # Called without parts, it measures what there is to measure.
  if [ $# -eq 0 ] && [[ $part == @(loader|tokenizer|step|train|data_parallel) ]] && ! [ -e "$data/train/manifest.json" ]; then
    say "$part: not measured, make train has not prepared $data yet"
    continue
  fi
  heading "$part"
  case $part in
    matmul) build/trireme bench matmul ;;
    collectives) build/trireme bench collectives --workers 2 && collectives ;;
    *) "$part" ;;
  esac
done
