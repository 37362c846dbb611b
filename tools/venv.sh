#!/usr/bin/env bash
# Makes .venv, a private Python environment that holds LibTorch: the torch wheel, which CMake finds there. Python is needed to
# build and to test, never to train.
#
# usage: tools/venv.sh [test]        test: also what the tests compare with (tools/requirements-test.txt)
# environment:
#   TORCH_VERSION   the release, by default 2.13.0. With a local part (2.13.0+cu130) only that build is taken.
#   TORCH_INDEX     a package index to look in, by default PyTorch's own public one for the CPU
#   PYTHON          the Python to make it with
# The CPU build is preferred; it is searched where pip is configured to look, then in TORCH_INDEX; the plain release is the last
# resort, for it is a CUDA build of several gigabytes on most machines. A second call takes no time.
source "$(dirname "$0")/lib.sh"

version=${TORCH_VERSION:-2.13.0}
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
venv=.venv
python=$venv/bin/python
stamp=$venv/trireme-torch
log=$venv/torch-install.log

# Short time-outs: an index that cannot be reached must cost seconds, since there is another place to look. The limit is for all
# of it, a download that trickles; in the foreground, so that Ctrl-C reaches pip. Compiling thousands of Python files, of which
# few will ever run, is left out.
pip_install() {
  timeout --foreground "${PIP_LIMIT_S:-1500}" "$python" -m pip install --no-input --disable-pip-version-check \
    --timeout 10 --retries 1 --no-compile "$@"
}

make_environment() {
  "$python" -m pip --version >/dev/null 2>&1 && return
  local base
  base=$(find_python) || die 2 "no Python 3.10 or newer that can make an environment${PYTHON:+ (looked at PYTHON=$PYTHON)}; run tools/setup.sh build"
  say "Making .venv with $base"
  "$base" -m venv --clear "$venv"
}

installed_version() {
  "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true
}

# The build is the one wanted: equal, or equal up to the local part when none was asked for.
is_wanted() { [ "$1" = "$version" ] || { [[ $version != *+* ]] && [ "${1%%+*}" = "$version" ]; }; }

# try_torch PLACE ARGUMENT...: one place to look; says what came of it.
try_torch() {
  local place=$1
  shift
  say "Looking for torch ($place)"
  if pip_install "$@" >"$log" 2>&1; then
    printf '%s\n' "$version" "$place" >"$stamp"
    say "Installed torch $(installed_version) ($place)"
    return 0
  fi
  say "  not there: $(grep -E '^ERROR' "$log" | tail -1 | cut -c1-200)"
  return 1
}

install_torch() {
  local found cpu=$version
  [[ $version == *+* ]] || cpu=$version+cpu
  found=$(installed_version)
  if [ -n "$found" ] && is_wanted "$found"; then
    printf '%s\n' "$version" "found in .venv" >"$stamp"
    return
  fi
  say "The wheel is about 200 MB, several GB if it has to be the CUDA build."
  try_torch "where pip is configured to look, torch==$cpu" "torch==$cpu" && return
  # An index that was named decides the build itself; PyTorch's own has the CPU build under this name.
  local in_index=$cpu
  [ -z "${TORCH_INDEX:-}" ] || in_index=$version
  try_torch "index $index, torch==$in_index" --index-url "$index" "torch==$in_index" && return
  if [[ $version != *+* ]]; then
    try_torch "the plain release, torch==$version" "torch==$version" && return
  fi
  die 2 "torch $version was not found for $("$python" --version) on $(uname -m). Name an index that has it with TORCH_INDEX=URL, or
  another release with TORCH_VERSION. pip's own words are in $log."
}

# What the tests compare with. The constraint keeps pip from exchanging torch for another build.
install_test_requirements() {
  local wanted have=$venv/trireme-test-requirements
  wanted=$(cat tools/requirements-test.txt "$stamp" | sha256sum)
  [ "$(cat "$have" 2>/dev/null)" != "$wanted" ] || return 0
  say "Installing what the tests compare with (tools/requirements-test.txt)"
  say "torch==$(installed_version)" >"$venv/keep-torch.txt"
  pip_install --quiet --constraint "$venv/keep-torch.txt" -r tools/requirements-test.txt \
    || die 2 "pip could not install tools/requirements-test.txt; its message is above"
  say "$wanted" >"$have"
}

if [ "$(head -1 "$stamp" 2>/dev/null)" != "$version" ] || ! [ -x "$python" ]; then
  make_environment
  install_torch
fi
case ${1:-} in
  '') ;;
  test) install_test_requirements ;;
  *) die 2 "usage: tools/venv.sh [test]" ;;
esac
