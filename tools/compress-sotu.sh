#!/usr/bin/env bash
# How well do general compressors predict the held-out text? One line each: name, bits per byte.
# usage: tools/compress-sotu.sh [FOLDER]    data/sotu by default
source "$(dirname "$0")/lib.sh"

folder=${1:-data/sotu}
[ -s "$folder/held-out.txt" ] || die 2 "there is no $folder/held-out.txt; run tools/prepare-sotu.sh $folder"

held_out() { (cd "$folder/text" && xargs -d '\n' cat) <"$folder/held-out.txt"; }
bytes=$(held_out | wc -c)
for compressor in 'xz -9e' 'bzip2 -9'; do
  compressed=$(held_out | $compressor | wc -c)
  awk -v name="$compressor" -v c="$compressed" -v b="$bytes" 'BEGIN { printf "%-10s %.2f\n", name, 8 * c / b }'
done
