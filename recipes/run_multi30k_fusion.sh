#!/usr/bin/env bash
# Train layer fusion, dense, coordinated or recurrent models on Multi30k German-English: each system
# with each seed, from raw text to one table of BLEU.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

group=fusion

usage() {
    cat << END
Usage: $(basename "$0") DATA_DIR [--group NAME] [--seeds "1 2 3"] [--systems "NAME ..."]
       [--out DIR] [--average N] [--jobs N] [--any-data] [--set KEY=VALUE ...]

DATA_DIR contains train, val and test_2016_flickr with the endings .de and .en, plain or .gz, as in
data/task1/raw of https://github.com/multi30k/dataset. Trains each system with each seed, averages
its last checkpoints, translates, scores (tokenised, lowercased multi-bleu) and prints the table. A
second call does only the missing steps.

  --group NAME         fusion (the default); dense: DenseNMT and the residual model of the same
                       size; coordinated: one stack for both languages; recurrent: ShallowRNMT,
                       DTMT and the Transformer
  --seeds "N ..."      seeds (1)
  --systems "NAME ..." files of $ROOT/recipes/multi30k/GROUP without .yaml (all)
  --out DIR            the folder of all output, each run in DIR/run.GROUP.SYSTEM.seedN
                       ($ROOT/work/multi30k_GROUP)
  --average N          number of checkpoints in the average (5)
  --jobs N             processes for the preparation (1)
  --any-data           continue if the text does not have the lines of Multi30k
  --set KEY=VALUE      change a key of every config, e.g. training.precision=bf16; repeatable
END
}

data='' seeds=1 systems='' out='' last=5 jobs=1 any_data=''
overrides=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --group) need_value "$1" $#; group=$2; shift 2 ;;
        --seeds) need_value "$1" $#; seeds=$2; shift 2 ;;
        --systems) need_value "$1" $#; systems=$2; shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --average) need_value "$1" $#; last=$2; shift 2 ;;
        --jobs) need_value "$1" $#; jobs=$2; shift 2 ;;
        --any-data) any_data=yes; shift ;;
        --set) need_value "$1" $#; overrides+=(--set "$2"); shift 2 ;;
        -*) die "there is no option $1; -h shows the usage" ;;
        *)
            [ -z "$data" ] || die "one DATA_DIR is enough, $1 is too much"
            data=$(absolute "$1")
            shift
            ;;
    esac
done
[ -n "$data" ] || die "give the folder of the Multi30k text; -h shows the usage"
folder=$ROOT/recipes/multi30k/$group
[[ $group =~ ^(fusion|dense|coordinated|recurrent)$ ]] ||
    die "--group is fusion, dense, coordinated or recurrent, not $group"
out=${out:-$ROOT/work/multi30k_$group}

known=()
for config in "$folder"/*.yaml; do
    name=$(basename "$config" .yaml)
    [ "$name" = base ] || known+=("$name")
done
read_words systems "${systems:-${known[*]}}"
[ "${#systems[@]}" -gt 0 ] || die "--systems names no system"
read_words seeds "$seeds"
[ "${#seeds[@]}" -gt 0 ] || die "--seeds names no seed"
for system in "${systems[@]}"; do
    [[ " ${known[*]} " == *" $system "* ]] || die "there is no system $system; known: ${known[*]}"
done
for seed in "${seeds[@]}"; do
    [[ $seed =~ ^[0-9]+$ ]] || die "a seed is a whole number, not $seed"
done

check_multi30k "$data" "$any_data"
need_fusetk

for seed in "${seeds[@]}"; do
    for system in "${systems[@]}"; do
        say "$system, seed $seed"
        call fusetk run "$folder/$system.yaml" --raw "$data" --out "$out" --seed "$seed" \
            --jobs "$jobs" --average "$last" --metric multi-bleu --until score \
            ${overrides[@]+"${overrides[@]}"}
    done
done
say "the table"
fusetk report "$folder" --runs "$out"
