# Shared by the scripts of this folder, which source it. It sets strict mode, goes to the project's root, and does nothing else.
# shellcheck shell=bash
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Colour only where a person looks.
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi

say() { printf '%s\n' "$*"; }
heading() { printf '\n%s== %s ==%s\n' "$bold" "$*" "$plain"; }

# die CODE MESSAGE...: exit codes are the program's own: 1 is a fault of ours, 2 is something the user can mend.
die() {
  local code=$1
  shift
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# 75 -> "1 min 15 s"
duration() {
  if (($1 < 60)); then printf '%d s' "$1"; else printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); fi
}

# A Python that can make a private environment: $PYTHON if given, else the first that works. Debian splits ensurepip off into
# python3-venv, so a python3 that runs is not yet one that serves.
find_python() {
  local candidate
  local -a candidates=(python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# control_group FILE: the contents of FILE in every control group (version 2) that this process is in, a line each.
control_group() {
  local group
  group=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null)
  while true; do
    cat "/sys/fs/cgroup$group/$1" 2>/dev/null || true
    [ -n "${group%/}" ] || return 0
    group=${group%/*}
  done
}

# How many compilers at once: one for each processor, and 2 GiB for each, which is what a file that includes torch takes. A
# container may grant less than the machine has.
build_jobs() {
  local jobs limit
  jobs=$(OMP_NUM_THREADS='' nproc)
  for limit in \
    "$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)" \
    "$(control_group memory.max | awk '$1 != "max" && (!n || $1 < n) { n = $1 } END { print n ? int(n / 2147483648) : 99999 }')" \
    "$(control_group cpu.max | awk '$1 != "max" && (!n || $1 / $2 < n) { n = $1 / $2 } END { print n ? int(n + 0.5) : 99999 }')"; do
    ((limit >= jobs)) || jobs=$limit
  done
  ((jobs >= 1)) || jobs=1
  say "${JOBS:-$jobs}"
}

# npm_pack PACKAGE SIZE SECONDS FOLDER ADVICE: fetches the package's archive into an empty FOLDER. There, since npm would read a package.json
# or .npmrc that lies here.
npm_pack() {
  command -v npm >/dev/null || die 2 "npm is needed to fetch $1; run tools/setup.sh train"
  say "Fetching $1 ($2)"
  (cd "$4" && timeout --foreground "$3" npm pack --loglevel=error "$1" >/dev/null) || die 1 "npm could not fetch $1; $5"
}

# next_free_folder runs/sotu: runs/sotu, or else runs/sotu-2, runs/sotu-3, ... An empty folder counts as free.
next_free_folder() {
  local folder=$1 number=1
  while [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; do
    number=$((number + 1))
    folder=$1-$number
  done
  say "$folder"
}
