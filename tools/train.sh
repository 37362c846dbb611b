#!/usr/bin/env bash
# From a fresh clone to a language model: installs what is missing, builds, fetches the State of the Union addresses, trains a
# model on them with two workers, measures it on the addresses it has not seen, and lets it write. Each part is a script of this
# folder that can be run alone; what is there already is kept, so a second call starts training at once, in a new folder.
#
# usage: tools/train.sh        or: make train
# environment: YES=1 (install without asking), WORKERS=2, PROMPT="...", RUN=FOLDER (default: runs/sotu, or the next free),
#              and what tools/setup.sh, tools/venv.sh and tools/build.sh take
source "$(dirname "$0")/lib.sh"

config=configs/sotu.toml
data=data/sotu
workers=${WORKERS:-2}
prompt=${PROMPT:-My fellow Americans,}

times=()
part=
# part NAME: ends the part before, whose time is kept for the summary, and starts this one.
part() {
  [ -z "$part" ] || times+=("$(printf '%-34s %s' "$part" "$(duration $((SECONDS - part_start)))")")
  part=$1 part_start=$SECONDS
  [ -z "$part" ] || heading "$part"
}

evaluate() {
  build/trireme eval "$run" | tee "$run/eval.txt"
  local bits
  bits=$(sed -nE 's/.*bits per byte *([0-9]+\.[0-9]+).*/\1/p' "$run/eval.txt")
  say "
Bits per byte on the addresses from 1991 on (fewer is better):"
  printf '%-10s %.2f\n' trireme "${bits:?eval printed no bits per byte}"
  tools/compress-sotu.sh "$data"
}

summary() {
  heading "Done in $(duration $SECONDS)"
  printf '%s\n' "${times[@]}"
  say "
the run        $run (configuration, metrics.jsonl, logs)
checkpoints    $run/checkpoints
data           $data (text, tokenizer, train, eval)

more text      build/trireme generate $run --prompt \"...\"
once more      make train, which takes the next free folder
an interrupted run goes on with
               build/trireme train $config --workers $workers --set run.dir=$run"
}

part "What this machine lacks"
tools/setup.sh build train
say "All there."
part "Python environment with LibTorch"
tools/venv.sh
say "Ready: .venv"
part "Build"
tools/build.sh release trireme
part "Texts"
tools/fetch-sotu.sh "$data/text"
part "Tokenizer and token shards"
tools/prepare-sotu.sh "$data"

run=${RUN:-$(next_free_folder runs/sotu)}
command=(build/trireme train "$config" --workers "$workers" --set "run.dir=$run")
part "Training"
say "Running: ${command[*]}"
say "$(sed -nE '/^\[train\]/,/^\[/ s/^steps *= *([0-9]+).*/\1/p' "$config") steps, 4 to 8 minutes on two processors. Ctrl-C saves and stops."
status=0
"${command[@]}" || status=$?
if ((status == 5)); then say "
Stopped and saved. It goes on with
  ${command[*]}"; fi
((status == 0)) || exit "$status"

part "Evaluation on held-out text"
evaluate
part "A sample"
build/trireme generate "$run" --prompt "$prompt" --max-tokens 120 --temperature 0.8 --top-k 50 --seed 1
part ""
summary
