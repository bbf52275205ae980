#!/usr/bin/env bash
# IWSLT14 German-English, the MIXER split, from the archive to BLEU.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [--archive de-en.tgz] [--config FILE] [--out DIR] [--jobs N] [--prepare-only] [--set KEY=VALUE ...]

Extracts the text, prepares it, compares what came out with the figures of public logs, trains, averages, translates and
scores. Run again, it does only what is missing.

  --archive FILE    the archive of WIT3 2014-01; downloaded when it is not given
  --config FILE     $ROOT/recipes/mlrf/iwslt14_deen/baseline_3layer.yaml (the default), another one beside it, or
                    $ROOT/recipes/iwslt14/transformer_6x512.yaml
  --out DIR         where everything is written ($ROOT/work/iwslt14_deen)
  --average N       checkpoints to average (5)
  --jobs N          processes for the preparation (1)
  --prepare-only    stop before training
  --any-data        go on when the data are not those of the published split
  --set KEY=VALUE   change a key of the config; repeatable
END
}

archive='' config=$ROOT/recipes/mlrf/iwslt14_deen/baseline_3layer.yaml out=$ROOT/work/iwslt14_deen
jobs=1 last=5 prepare_only='' any_data=() given=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --archive) need_value "$1" $#; archive=$(absolute "$2"); shift 2 ;;
        --config) need_value "$1" $#; config=$(absolute "$2"); shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --average) need_value "$1" $#; last=$2; shift 2 ;;
        --jobs) need_value "$1" $#; jobs=$2; shift 2 ;;
        --prepare-only) prepare_only=yes; shift ;;
        --any-data) any_data=(--any-data); shift ;;
        --set) need_value "$1" $#; given+=(--set "$2"); shift 2 ;;
        *) die "there is no option $1; -h shows the usage" ;;
    esac
done
need_fusetk
[ -f "$config" ] || die "there is no config $config"

raw=$out/raw iwslt=$ROOT/recipes/data/iwslt14.py
name=$(basename "$config" .yaml) group=$(basename "$(dirname "$config")")
if [ ! -d "$raw" ]; then
    say "extract the text"
    mkdir -p "$out"
    rm -rf "$raw.part"
    [ -n "$archive" ] || archive=$(python3 "$iwslt" fetch "$out")
    python3 "$iwslt" extract "$archive" "$raw.part" ${any_data[@]+"${any_data[@]}"}
    mv "$raw.part" "$raw"
fi

# Rows of one paper share their prepared data.
prepared=$out/data.$group run=$out/run.$group.$name
sets="[\"$raw/dev2010\", \"$raw/TEDX.dev2012\", \"$raw/tst2010\", \"$raw/tst2011\", \"$raw/tst2012\"]"
settings=(
    --set "data.folder=\"$prepared\"" --set "data.train=[\"$raw/train\"]" --set "data.test={test: $sets}"
    ${given[@]+"${given[@]}"}
)
say "prep: text to subwords to ids"
fusetk prep "$config" "${settings[@]}" --jobs "$jobs"
say "compare with the public split"
python3 "$iwslt" check "$prepared" ${any_data[@]+"${any_data[@]}"}
[ -z "$prepare_only" ] || exit 0

say "train"
fusetk train "$config" "${settings[@]}" --run "$run"
say "translate and score (tokenised, case-insensitive)"
average "$run" "$last"
translate "$run/checkpoints/best" "$prepared/test.test.de.txt" "$out/best.$group.$name.txt" --tokenized
translate "$averaged" "$prepared/test.test.de.txt" "$out/average.$group.$name.txt" --tokenized
for system in best "$(basename "$averaged")"; do
    fusetk score "$out/${system%-*}.$group.$name.txt" -r "$prepared/test.test.en.txt" --metric multi-bleu-lc \
        --run "$run" --set-name test --checkpoint "$system"
done
