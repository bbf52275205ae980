#!/usr/bin/env bash
# Multi30k (task 1), English-German or German-English, from raw text to BLEU on test_2016_flickr.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") DATA_DIR [--pair en-de|de-en] [--out DIR] [--jobs N]
       [--set KEY=VALUE ...]

DATA_DIR contains train, val and test_2016_flickr with the endings .de and .en, plain or .gz, as in
data/task1/raw of https://github.com/multi30k/dataset. A second call does only the missing steps.

  --pair en-de      Transformer-Tiny, 8,000 updates, the last 10 epochs averaged (the default;
                    published: 41.02 BLEU)
  --pair de-en      3+3 layers of width 256, 1,294 updates (fairseq 0.12.2: 37.85 BLEU)
  --out DIR         the folder of all output ($ROOT/work/multi30k)
  --jobs N          processes for the preparation (1)
  --set KEY=VALUE   change a key of the config, e.g. training.precision=bf16; repeatable
END
}

data='' pair=en-de out=$ROOT/work/multi30k jobs=1
overrides=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --pair) need_value "$1" $#; pair=$2; shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --jobs) need_value "$1" $#; jobs=$2; shift 2 ;;
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
case $pair in
    en-de) config=$ROOT/recipes/multi30k/transformer_tiny_en_de.yaml last=10 ;;
    de-en) config=$ROOT/recipes/multi30k/transformer_de_en.yaml last=5 ;;
    *) die "--pair is en-de or de-en, not $pair" ;;
esac

check_multi30k "$data"
need_fusetk
exec fusetk run "$config" --raw "$data" --out "$out" --jobs "$jobs" --average "$last" \
    --metric multi-bleu ${overrides[@]+"${overrides[@]}"}
