#!/usr/bin/env bash
# Train and score a config on its split of IWSLT14 German-English, from the archive to BLEU.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [--archive de-en.tgz] [--config FILE] [--out DIR] [--jobs N]
       [--prepare-only] [--set KEY=VALUE ...]

Extracts the text, prepares it, compares its counts with the published ones of the config's split,
trains, averages, translates the config's test sets and scores. Metric and checkpoint are those of
the published score. A second call does only the missing steps.

  --archive FILE    the archive of WIT3 2014-01; downloaded without this option
  --config FILE     $ROOT/recipes/iwslt14/transformer_6x512.yaml, or a row of the folders
                    iwslt14_deen and iwslt14_deen_words of mlrf, lwc and densenmt in
                    $ROOT/recipes (mlrf/iwslt14_deen/baseline_3layer.yaml)
  --out DIR         the folder of all output ($ROOT/work/iwslt14_deen)
  --average N       also score an average of N checkpoints. A config without a published score is
                    scored at the best checkpoint and at an average of all that it keeps
  --jobs N          processes for the preparation (1)
  --prepare-only    stop before training
  --any-data        continue if the data are not those of the published split
  --set KEY=VALUE   change a key of the config; repeatable
END
}

archive='' config=$ROOT/recipes/mlrf/iwslt14_deen/baseline_3layer.yaml out=$ROOT/work/iwslt14_deen
jobs=1 last='' prepare_only='' any_data=() overrides=()
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
        --set) need_value "$1" $#; overrides+=("$2"); shift 2 ;;
        *) die "there is no option $1; -h shows the usage" ;;
    esac
done
need_fusetk
[ -f "$config" ] || die "there is no config $config"

raw=$out/raw iwslt=$ROOT/recipes/data/iwslt14.py
folder=$(cd "$(dirname "$config")" && pwd)
name=$(basename "$config" .yaml) group=$(basename "$folder")
case $folder in
    "$ROOT"/recipes/mlrf/*) ;;
    "$ROOT"/recipes/*/*) group=$(basename "$(dirname "$folder")")_$group ;;
esac
prepared=$out/data.$group run=$out/run.$group.$name  # rows of one paper share their prepared data

mkdir -p "$out"
[ -n "$prepare_only" ] || lock_run "$run"
lock_data "$raw"
if [ ! -d "$raw" ]; then
    say "extract the text"
    rm -rf "$raw.part"
    [ -n "$archive" ] || archive=$(python3 "$iwslt" fetch "$out")
    python3 "$iwslt" extract "$archive" "$raw.part" ${any_data[@]+"${any_data[@]}"}
    mv "$raw.part" "$raw"
fi
read_row "$config" "$raw" "$prepared" ${overrides[@]+"${overrides[@]}"}
say "prep: text to subwords to ids"
fusetk prep "$config" "${settings[@]}" --jobs "$jobs"
unlock_data
say "compare with the published split"
python3 "$iwslt" check "$prepared" ${any_data[@]+"${any_data[@]}"}
[ -z "$prepare_only" ] || exit 0

say "train"
fusetk train "$config" "${settings[@]}" --run "$run"
say "translate and score (tokenised)"
published "$run" "$last"
metric=${row_metrics[0]}
for set in "${tests[@]}"; do
    text=$prepared/test.$set part=.$set
    [ "$set" != test ] || part=''
    for folder in "${decoded[@]}"; do
        label=$(basename "$folder")
        words=$out/${label%-*}.$group.$name$part.txt
        translate "$folder" "$text.$source.txt" "$words" --tokenized
        fusetk score "$words" -r "$text.$target.txt" --metric "$metric" \
            --run "$run" --set-name "$set" --checkpoint "$label"
    done
done
