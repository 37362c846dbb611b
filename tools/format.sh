#!/usr/bin/env bash
# Formats the tracked C++ sources with clang-format.
# usage: tools/format.sh [--check]      --check changes nothing and fails on what is not formatted; it reads the scripts with shellcheck too
source "$(dirname "$0")/lib.sh"

tools/setup.sh format
version=$(clang-format --version | grep -oE '[0-9]+\.[0-9.]+' | head -1)
# Releases differ in small things; the sources follow Debian 12's.
[ "${version%%.*}" = 14 ] || say "note: this is clang-format $version; the sources are formatted with 14"

sources() { git ls-files -z -- '*.cpp' '*.h' '*.cu'; }
if [ "${1:-}" = --check ]; then
  sources | xargs -0 -r clang-format --dry-run -Werror || die 2 "some sources are not formatted; make format mends them"
  git ls-files -z -- '*.sh' .ci/run | xargs -0 -r shellcheck -x -P SCRIPTDIR
  say "formatted: $(sources | tr -cd '\0' | wc -c) sources"
else
  sources | xargs -0 -r clang-format -i
fi
