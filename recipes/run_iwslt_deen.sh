#!/usr/bin/env bash
# Train and score a config on its split of IWSLT14 German-English, from the archive to BLEU.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [--archive de-en.tgz] [--config FILE] [--out DIR] [--average N]
       [--jobs N] [--prepare-only] [--any-data] [--set KEY=VALUE ...]

Calls \`fusetk run CONFIG --raw DIR/raw --out DIR/PAPER --dataset\`: it makes the raw text, prepares
it, compares its counts with the published ones of the config's split, and takes all other steps. A
second call does only the missing steps.

  --archive FILE    the archive of WIT3 2014-01; downloaded without this option
  --config FILE     $ROOT/recipes/iwslt14/transformer_6x512.yaml, or a row of the folders
                    iwslt14_deen and iwslt14_deen_words of mlrf, lwc and densenmt in
                    $ROOT/recipes (mlrf/iwslt14_deen/baseline_3layer.yaml)
  --out DIR         the folder of all output ($ROOT/work/iwslt14_deen): the raw text in DIR/raw, and
                    the runs of each paper in DIR/PAPER
  --average N       also score an average of N checkpoints. A config without a published score is
                    scored at the best checkpoint and at an average of all that it keeps
  --jobs N          processes for the preparation (1)
  --prepare-only    stop before training
  --any-data        continue if the data are not those of the published split
  --set KEY=VALUE   change a key of the config; repeatable
END
}

archive='' config=$ROOT/recipes/mlrf/iwslt14_deen/baseline_3layer.yaml out=$ROOT/work/iwslt14_deen
options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --archive) need_value "$1" $#; archive=$(absolute "$2"); shift 2 ;;
        --config) need_value "$1" $#; config=$(absolute "$2"); shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --average) need_value "$1" $#; options+=(--average "$2"); shift 2 ;;
        --jobs) need_value "$1" $#; options+=(--jobs "$2"); shift 2 ;;
        --prepare-only) options+=(--until prep); shift ;;
        --any-data) options+=(--any-data); shift ;;
        --set) need_value "$1" $#; options+=(--set "$2"); shift 2 ;;
        *) die "there is no option $1; -h shows the usage" ;;
    esac
done
need_fusetk
[ -f "$config" ] || die "there is no config $config"

folder=$(cd "$(dirname "$config")" && pwd -P)
paper=iwslt14
case $folder in
    "$ROOT"/recipes/*/iwslt14_deen | "$ROOT"/recipes/*/iwslt14_deen_words)
        paper=$(basename "$(dirname "$folder")") ;;
    "$ROOT"/recipes/iwslt14) ;;
    "$ROOT"/recipes/*)
        die "$config is not one of the configs that -h lists: use \`fusetk run\`" ;;
esac
if [ -n "$archive" ]; then
    [ -f "$archive" ] || die "there is no archive $archive"
    make_folder "$out/raw/archives"
    link=$out/raw/archives/de-en.tgz
    if [ ! "$archive" -ef "$link" ]; then
        [ ! -e "$link" ] || [ -L "$link" ] ||
            die "$link exists already: omit --archive, or move that file"
        [ ! -e "$out/raw/train.de" ] ||
            die "$out/raw has text already: omit --archive, or give another --out"
        ln -sf "$archive" "$link"
    fi
fi
exec fusetk run "$config" --raw "$out/raw" --out "$out/$paper" --dataset \
    ${options[@]+"${options[@]}"}
