#!/usr/bin/env bash
# Installs the Debian packages that are missing for a purpose. It looks for commands and headers, not for packages: what a machine
# has from elsewhere (Node.js, CMake, a Python) is used as it is, and a package that would conflict with it is not asked for.
#
# usage: tools/setup.sh [--list] PURPOSE...      PURPOSE: build train test soak bench format
#   --list   print the packages that are missing, one a line, and change nothing
# It prints what it will install and asks first, on a terminal, when sudo is needed. Root, CI, YES=1 and a script are not asked.
# exit: 0 all is there; 2 something is missing that it cannot install (the message says what to do)
source "$(dirname "$0")/lib.sh"

# purpose, package, kind of thing to look for, its name
needs='
build   g++                     command   g++
build   make                    command   make
build   cmake                   command   cmake
build   ninja-build             command   ninja
build   ccache                  command   ccache
build   pkg-config              command   pkg-config
build   python3-venv            python    3.10
build   libcli11-dev            header    CLI/CLI.hpp
build   nlohmann-json3-dev      header    nlohmann/json.hpp
build   libtomlplusplus-dev     header    toml++/toml.h
build   libpcre2-dev            header    pcre2.h
build   libxxhash-dev           header    xxhash.h
build   libprotozero-dev        header    protozero/pbf_writer.hpp
build   libjemalloc-dev         header    jemalloc/jemalloc.h
build   libzstd-dev             header    zstd.h
build   zlib1g-dev              header    zlib.h
build   libgtest-dev            header    gtest/gtest.h
build   libgmock-dev            header    gmock/gmock.h
train   npm                     command   npm
train   xz-utils                command   xz
train   bzip2                   command   bzip2
test    npm                     command   npm
test    git                     command   git
soak    slurmctld               command   slurmctld
soak    slurmd                  command   slurmd
soak    slurm-client            command   sbatch
soak    munge                   command   munged
bench   libbenchmark-dev        header    benchmark/benchmark.h
format  clang-format            command   clang-format
format  shellcheck              command   shellcheck
format  git                     command   git
'

has_header() {
  if command -v g++ >/dev/null; then
    g++ -x c++ -E -P - 2>/dev/null <<<"#if !__has_include(<$1>)
#error missing
#endif" >/dev/null
  else
    [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]
  fi
}

is_there() {
  case $1 in
    command) PATH=$PATH:/usr/sbin command -v "$2" >/dev/null ;;  # where daemons are
    header) has_header "$2" ;;
    python) find_python >/dev/null ;;
  esac
}

# Fills `packages` and `things` with what the purposes given lack.
find_missing() {
  local purpose package kind name
  packages=() things=()
  while read -r purpose package kind name; do
    [[ -n $purpose && " $* " == *" $purpose "* ]] || continue
    if ! is_there "$kind" "$name"; then
      [[ " ${packages[*]} " == *" $package "* ]] || packages+=("$package")
      things+=("$kind $name")
    fi
  done <<<"$needs"
}

# The words that run a command as root; empty for root. Exits when there is no way.
root_words() {
  [ "$(id -u)" -ne 0 ] || return 0
  command -v sudo >/dev/null || die 2 "installing needs root, and there is no sudo. As root:
  apt-get update && apt-get install --no-install-recommends ${packages[*]}"
  # Without a terminal a password cannot be typed: fail at once rather than wait for one.
  if [ -t 0 ]; then say sudo; else say sudo -n; fi
}

confirm() {
  [ "$(id -u)" -ne 0 ] && [ -z "${CI:-}" ] && [ "${YES:-}" != 1 ] && [ -t 0 ] || return 0
  local answer
  read -r -p "Install them with sudo? [Y/n] " answer
  case $answer in
    '' | [yY]*) ;;
    *) die 2 "not installed. To do it yourself: sudo apt-get install --no-install-recommends ${packages[*]}" ;;
  esac
}

install() {
  local words
  words=$(root_words)
  local -a root
  read -r -a root <<<"$words"
  confirm
  local -a apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive timeout --foreground 1500 apt-get -y -q -o DPkg::Lock::Timeout=120)
  local log
  log=$(mktemp)
  say "Installing; this takes a minute or two"
  "${apt[@]}" update >"$log" 2>&1 || say "apt-get update failed; going on with the lists that are there"
  "${apt[@]}" -o Dpkg::Use-Pty=0 install --no-install-recommends "${packages[@]}" >>"$log" 2>&1 || {
    tail -20 "$log"
    die 2 "apt-get could not install: ${packages[*]}. Its last words are above, the rest is in $log"
  }
  rm -f "$log"
}

list=
if [ "${1:-}" = --list ]; then
  list=1
  shift
fi
known=' build train test soak bench format '
[ $# -gt 0 ] || set -- build
for purpose in "$@"; do
  [[ $known == *" $purpose "* ]] || die 2 "there is no purpose \`$purpose\`; there are:$known"
done

find_missing "$@"
if [ -n "$list" ]; then
  ((${#packages[@]} == 0)) || printf '%s\n' "${packages[@]}"
  exit 0
fi
((${#packages[@]} > 0)) || exit 0

say "Missing on this machine: $(printf '%s, ' "${things[@]}" | sed 's/, $//')"
say "To install, with what they depend on: ${packages[*]}"
command -v apt-get >/dev/null || die 2 "this machine has no apt-get. Install what gives the commands and headers above (Debian calls
  the packages ${packages[*]}), then run the same command again."
install
find_missing "$@"
((${#things[@]} == 0)) || die 2 "still missing after installing: ${things[*]}"
