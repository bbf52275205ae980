#!/usr/bin/env bash
# All steps on a small German-English corpus: generate, prep, train, average, decode, score, plot.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [--out DIR] [--set KEY=VALUE ...]

Generates a German-English corpus from a grammar, trains a small Transformer on it, translates test
sentences, scores and plots. A second call does only the missing steps.

  --out DIR         the folder of all output ($ROOT/work/demo)
  --set KEY=VALUE   change a key of $ROOT/recipes/demo/demo.yaml; repeatable
END
}

out=$ROOT/work/demo
overrides=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --set) need_value "$1" $#; overrides+=(--set "$2"); shift 2 ;;
        *) die "there is no option $1; -h shows the usage" ;;
    esac
done
need_fusetk

config=$ROOT/recipes/demo/demo.yaml
raw=$out/raw run=$out/run
settings=(
    --set "data.folder=\"$out/data\"" --set "data.train=[\"$raw/train\"]"
    --set "data.valid=[\"$raw/valid\"]" --set "data.test={demo: [\"$raw/test\"]}"
    ${overrides[@]+"${overrides[@]}"}
)

begin=$SECONDS
if [ ! -d "$raw" ]; then
    say "generate the corpus"
    mkdir -p "$out"
    rm -rf "$raw.part"
    python3 "$ROOT/recipes/demo/grammar.py" "$raw.part"
    mv "$raw.part" "$raw"
fi
say "prep: text to subwords to ids"
fusetk prep "$config" "${settings[@]}"
say "train"
fusetk train "$config" "${settings[@]}" --run "$run"
say "average the last checkpoints, translate, score"
average "$run" 5
model=$averaged
translate "$model" "$raw/test.de" "$out/test.out.en"
fusetk score "$out/test.out.en" -r "$raw/test.en" --json > "$out/score.json"
say "plot"
if stale "$out/attention.png" "$model/state.json"; then
    sentence=$(python3 "$ROOT/recipes/demo/summary.py" --sentence "$out")
    fusetk plot-attention -m "$model" -s "$sentence" -o "$out/attention.png"
fi
if stale "$out/curves.png" "$run/metrics.jsonl"; then
    fusetk plot-curves "$run" -o "$out/curves.png"
fi
python3 "$ROOT/recipes/demo/summary.py" "$out" --seconds $((SECONDS - begin))
