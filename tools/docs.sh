#!/usr/bin/env bash
# Makes the pages that are generated: docs/configuration.md from the description of the options in the program, and the reference of
# the public headers (include/, once there is one) in build/docs.
# usage: tools/docs.sh [--check]      --check changes nothing and fails when docs/configuration.md is out of date
source "$(dirname "$0")/lib.sh"

page=docs/configuration.md
tools/setup.sh build
tools/venv.sh
tools/build.sh release trireme
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
build/trireme config --docs >"$fresh"

if [ "${1:-}" = --check ]; then
  cmp -s "$fresh" "$page" || die 2 "$page is out of date; make docs writes it anew"
  exit 0
fi
cat "$fresh" >"$page"
say "written: $page"
if [ -d include ]; then
  tools/setup.sh docs
  mkdir -p build/docs
  doxygen - <<'END'
PROJECT_NAME = Trireme
INPUT = include
RECURSIVE = YES
OUTPUT_DIRECTORY = build/docs
GENERATE_LATEX = NO
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_AS_ERROR = FAIL_ON_WARNINGS
END
  say "written: build/docs/html/index.html"
fi
