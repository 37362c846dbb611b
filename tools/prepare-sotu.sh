#!/usr/bin/env bash
# From the State of the Union texts to token shards: a tokenizer of 4,096 tokens trained on 1790 to 1990, the shards to train on
# (the same years), and those held out (1991 on). What is there and complete is kept.
# usage: tools/prepare-sotu.sh [FOLDER]    data/sotu by default; FOLDER/text must hold the texts (tools/fetch-sotu.sh)
source "$(dirname "$0")/lib.sh"

folder=${1:-data/sotu}
[ -d "$folder/text" ] || die 2 "there is no $folder/text; run tools/fetch-sotu.sh $folder/text"

held_out=() train=()
for file in "$folder"/text/*.txt; do
  name=${file##*/}
  if [ "${name%%_*}" -ge 1991 ]; then held_out+=("$file"); else train+=("$file"); fi
done
((${#held_out[@]} > 0 && ${#train[@]} > 0)) || die 2 "$folder/text does not hold the texts; run tools/fetch-sotu.sh $folder/text"
printf '%s\n' "${held_out[@]##*/}" >"$folder/held-out.txt"

if [ -e "$folder/tokenizer/manifest.json" ]; then
  say "The tokenizer is in $folder/tokenizer"
else
  build/trireme data tokenizer "${train[@]}" --vocab 4096 --out "$folder/tokenizer"
fi
# This call does nothing when its output is complete, and goes on where an interrupted one stopped.
build/trireme data prepare "$folder/text" --tokenizer "$folder/tokenizer" --eval-list "$folder/held-out.txt" --out "$folder"
