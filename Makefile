# The commands of the project; each is a script under tools/ that works alone. `make` lists them.
# Variables (make train YES=1) reach the scripts: YES, JOBS, TORCH_VERSION, TORCH_INDEX, PYTHON, WORKERS, RUN, PROMPT, TEST_JOBS.

.PHONY: help train build test soak sanitize bench format format-check docs venv setup clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

train:  ## everything: install, build, fetch, train a language model with two workers, show what it writes
	@tools/train.sh

build:  ## build the program, build/trireme
	@tools/setup.sh build && tools/venv.sh && tools/build.sh release trireme

test:  ## build and run all tests (at most 15 minutes on two processors)
	@tools/test.sh

soak:  ## the tests with their long sweeps whole
	@tools/test.sh --soak

sanitize:  ## the unit tests under the address, undefined-behaviour and thread sanitizers
	@tools/sanitize.sh

bench:  ## measure this machine, and beside it numpy, tiktoken and PyTorch DDP (tools/bench.sh PART)
	@tools/bench.sh

format:  ## format the sources
	@tools/format.sh

format-check:  ## fail when a source is not formatted, or a script has a fault that shellcheck sees
	@tools/format.sh --check

docs:  ## write the generated page, docs/configuration.md
	@tools/docs.sh

venv:  ## make .venv, the private environment with LibTorch
	@tools/setup.sh build && tools/venv.sh

setup:  ## install the packages that building, training and testing need
	@tools/setup.sh build train test

clean:  ## remove what was built (keeps .venv, data and runs)
	rm -rf build build-debug build-asan build-tsan build-cuda build-bench
