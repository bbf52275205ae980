#!/usr/bin/env bash
# Train and score any row of a paper's table, from raw text to BLEU.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") CONFIG --raw DIR [--out DIR] [--seed N] [--set KEY=VALUE ...]

Prepares the text that CONFIG names, trains, averages, translates all test sets and scores. Metric
and checkpoint are those of the published score. A second call does only the missing steps.
\`fusetk report FOLDER --runs OUT\`, with the folder of CONFIG, prints the table.

DIR replaces the folders in CONFIG's paths of text: for raw/train, DIR contains train.de and
train.en, plain or .gz. Several references of a test set are SET.en, SET.en1, SET.en2, ...
Configs of one folder share prepared data. They may run at the same time: one waits while another
prepares.

  --raw DIR         the folder of the text
  --out DIR         the folder of all output ($ROOT/work/PAPER_TASK, after the folders of CONFIG)
  --seed N          training.seed (the config's)
  --average N       also score an average of N checkpoints. A config without a published score is
                    scored at the best checkpoint and at an average of all that it keeps
  --metric NAME     another metric; repeatable. multi-bleu, multi-bleu-lc and multi-bleu-joined
                    score tokenised text. Others, such as sacrebleu, score raw text, and ignore case
                    if the config lowercases the target
  --jobs N          processes for the preparation (1)
  --prepare-only    stop before training
  --set KEY=VALUE   change a key of the config; repeatable
END
}

config='' raw='' out='' last='' jobs=1 seed='' prepare_only=''
metrics=() overrides=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --raw) need_value "$1" $#; raw=$(absolute "$2"); shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --seed) need_value "$1" $#; seed=$2; shift 2 ;;
        --average) need_value "$1" $#; last=$2; shift 2 ;;
        --metric) need_value "$1" $#; metrics+=("$2"); shift 2 ;;
        --jobs) need_value "$1" $#; jobs=$2; shift 2 ;;
        --prepare-only) prepare_only=yes; shift ;;
        --set)
            need_value "$1" $#
            case $2 in
                data.folder=* | data.train=* | data.valid=* | data.test=*)
                    die "--set $2: use --raw for the folder of the text, and --out for the output"
                    ;;
            esac
            overrides+=("$2"); shift 2 ;;
        -*) die "there is no option $1; -h shows the usage" ;;
        *)
            [ -z "$config" ] || die "give one CONFIG only, not $1 too"
            config=$(absolute "$1")
            shift
            ;;
    esac
done
[ -n "$config" ] ||
    die "give a config, such as recipes/mlrf/iwslt14_deen/both_ffn_sa.yaml; -h shows the usage"
[ -f "$config" ] || die "the config $config does not exist"
[ -n "$raw" ] || die "give the folder of the text by --raw; -h shows the usage"
[ -d "$raw" ] || die "the folder $raw does not exist"
[ -z "$seed" ] || overrides+=("training.seed=$seed")
need_fusetk

folder=$(cd "$(dirname "$config")" && pwd)
name=$(basename "$config" .yaml) group=$(basename "$folder")
out=${out:-$ROOT/work/$(basename "$(dirname "$folder")")_$group}
prepared=$out/data.$group
row=$ROOT/recipes/row.py

read_row "$config" "$raw" "$prepared" ${overrides[@]+"${overrides[@]}"}
metrics=("${row_metrics[@]}" ${metrics[@]+"${metrics[@]}"})
run=$out/run.$group.$name.seed$seed
mkdir -p "$out"
[ -n "$prepare_only" ] || lock_run "$run"
lock_data "$prepared"
say "prep: text to subwords to ids"
fusetk prep "$config" "${settings[@]}" --jobs "$jobs"
unlock_data
[ -z "$prepare_only" ] || exit 0

say "train"
fusetk train "$config" "${settings[@]}" --run "$run"
published "$run" "$last"
[ "${#tests[@]}" -gt 0 ] || die "$config names no test set, so there is nothing to score"

say "translate and score"
further=$out/references.$group
python3 "$row" references "$config" "$raw" "$prepared" "$further" ${overrides[@]+"${overrides[@]}"}
for set in "${tests[@]}"; do
    text=$prepared/test.$set
    for folder in "${decoded[@]}"; do
        label=$(basename "$folder")
        words=$run/$set.$label
        translate "$folder" "$text.$source.txt" "$words.txt" --tokenized
        for metric in "${metrics[@]}"; do
            case $metric in
                multi-bleu*) form=txt options=() ;;
                *)
                    form=raw options=(${lowercase[@]+"${lowercase[@]}"})
                    python3 "$row" detokenize "$prepared" "$words.txt" "$words.raw"
                    ;;
            esac
            references=(-r "$text.$target.$form")
            for reference in "$further/$set"/*."$form"; do
                [ ! -e "$reference" ] || references+=(-r "$reference")
            done
            fusetk score "$words.$form" "${references[@]}" --metric "$metric" \
                ${options[@]+"${options[@]}"} --run "$run" --set-name "$set" --checkpoint "$label"
        done
    done
done
