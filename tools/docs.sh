#!/usr/bin/env bash
# Makes the page that is generated: docs/configuration.md, from the description of the options in the program.
# usage: tools/docs.sh
source "$(dirname "$0")/lib.sh"

page=docs/configuration.md
tools/setup.sh build
tools/venv.sh
tools/build.sh release trireme
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
build/trireme config --docs >"$fresh"
cat "$fresh" >"$page"
say "written: $page"
