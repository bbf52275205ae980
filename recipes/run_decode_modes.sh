#!/usr/bin/env bash
# Measure BLEU and speed of every way of decoding with one trained model on a test set.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") RUN SOURCE REFERENCE [--other RUN] [--out DIR] [--tokenized] [--device D]

Translates SOURCE with RUN in every mode of \`fusetk decode\` and scores it against REFERENCE. Both
are lines of plain text. Some modes get words of the reference as a prefix or as constraints: their
scores show that the words are used, not that translations are better. A second call with the same
models, texts and options does only the missing steps.

  --other RUN       a second model with the same vocabularies, for ensembles
  --out DIR         the folder of the translations ($ROOT/work/decode_modes)
  --tokenized       SOURCE and REFERENCE are tokenised by the run's text preparation; the metric is
                    multi-bleu, otherwise sacreBLEU
  --device D        the device (auto)
END
}

positional=() other='' out=$ROOT/work/decode_modes metric=sacrebleu
common=(--device auto)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --other) need_value "$1" $#; other=$(absolute "$2"); shift 2 ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --tokenized) common+=(--tokenized); metric=multi-bleu; shift ;;
        --device) need_value "$1" $#; common+=(--device "$2"); shift 2 ;;
        -*) die "there is no option $1; -h shows the usage" ;;
        *) positional+=("$(absolute "$1")"); shift ;;
    esac
done
[ ${#positional[@]} -eq 3 ] || die "give RUN, SOURCE and REFERENCE; -h shows the usage"
run=${positional[0]} source=${positional[1]} reference=${positional[2]}
for model in "$run" ${other:+"$other"}; do
    [ -d "$model" ] || die "there is no run $model"
done
for file in "$source" "$reference"; do
    [ -f "$file" ] || die "there is no file $file"
done
lines=$(lines "$source")
[ "$lines" -eq "$(lines "$reference")" ] ||
    die "$source and $reference have unequal numbers of lines"
need_fusetk
case $source/,$reference/ in
    "$out"/* | *,"$out"/*)
        problem="SOURCE and REFERENCE must not be in $out, where this command overwrites files"
        die "$problem: give another --out"
        ;;
esac
if [ ! -e "$out/inputs" ] && [ -n "$(ls "$out" 2> /dev/null)" ]; then
    die "$out is not a folder of this command and has files: give another --out"
fi
make_folder "$out"
exec 9>> "$out/.lock"  # the commands of this script inherit the lock
if command -v flock > /dev/null; then
    flock -n 9 || die "another call writes to $out: wait until it ends, or give another --out"
fi

# The translations in the folder are reused, so they have to be those of the same inputs.
inputs=$(
    printf '%s\n' "$run" "$other" "${common[*]}"
    cat "$source" "$reference" | cksum
    for model in "$run" "$other"; do
        cat "$model/state.json" "$model/checkpoints/best/state.json" 2> /dev/null | cksum || true
        # The modes take the other settings of the search from the config of the run.
        cat "$model/config.yaml" "$model/../../config.yaml" 2> /dev/null |
            sed -n '/^decoding:/,/^[^ d]/p' | cksum || true
    done
)
if [ -e "$out/greedy.txt" ] && [ "$inputs" != "$(cat "$out/inputs" 2> /dev/null)" ]; then
    die "$out has translations of other models, texts or options: give another --out, or remove it"
fi
printf '%s\n' "$inputs" > "$out/inputs"
awk '{ print $1, $2 }' "$reference" > "$out/prefix"
awk '{ print $(int((NF + 1) / 2)) "\t" $(NF > 1 ? NF - 1 : 1) }' "$reference" > "$out/phrases"
printf '%-44s %7s  %s\n' mode BLEU speed > "$out/table.txt"

# mode NAME ARGUMENT ...: translate unless the translation exists, score, add a line to the table.
mode() {
    local name=$1 file scored stop=(--stop exact)
    shift
    case " $* " in *" --sample "*) stop=() ;; esac # has no effect on samples
    file=$out/$(tr -cs 'a-z0-9.\n' _ <<< "$name")
    if [ ! -e "$file.txt" ]; then
        say "$name"
        call fusetk decode -m "$run" -i "$source" -o "$file.part" "${common[@]}" \
            ${stop[@]+"${stop[@]}"} "$@" 2> "$file.log" ||
            die "$(tail -n 1 "$file.log")"
        mv "$file.part" "$file.txt"
    fi
    # Keep the text of lines with an alignment, and the first entry of each n-best list. A blank
    # input line has no entry.
    if [ -z "${n_best:-}" ]; then
        awk -F ' [|][|][|] ' '{ print $1 }' "$file.txt" > "$out/first"
    else
        awk -F ' [|][|][|] ' -v lines="$lines" '!($1 in first) { first[$1] = $2 }
            END { for (i = 0; i < lines; i++) print first[i] }' "$file.txt" > "$out/first"
    fi
    scored=$(fusetk score "$out/first" -r "$reference" --metric "$metric" 2> "$file.warnings") ||
        die "$(tail -n 1 "$file.warnings")"
    printf '%-44s %7s  %s\n' "$name" "$(sed -n 's/.*BLEU = \([0-9.]*\).*/\1/p' <<< "$scored")" \
        "$(sed -n 's/.*s: \(.*sentences\/s\).*/\1/p' "$file.log")" >> "$out/table.txt"
}

mode "greedy" -b 1
mode "beam 5" -b 5
mode "beam 5, stop beam" -b 5 --stop beam
mode "beam 5, stop first" -b 5 --stop first
mode "beam 20" -b 20
mode "no length penalty" -b 5 -n 0
mode "gnmt 0.6" -b 5 --penalty gnmt -n 0.6
mode "word penalty -0.3" -b 5 -n 0 --word-penalty -0.3
mode "gnmt 0.2, coverage penalty 0.2" -b 5 --penalty gnmt -n 0.2 --coverage-penalty 0.2
mode "no repeated 3-gram" -b 5 --no-repeat-ngram 3
mode "minimum 0.8 of the source" -b 5 --min-length-factor 0.8
mode "maximum 0.8 of the source" -b 5 --max-length-factor 0.8 --max-length-extra 0
mode "unknown forbidden" -b 5 --forbid-unknown
mode "unknown replaced" -b 5 --replace-unknown
mode "bf16" -b 5 --precision bf16
mode "alignments" -b 5 --alignment
n_best=1 mode "5 best" -b 5 --n-best 5
n_best=1 mode "5 groups, 5 best" -b 5 --groups 5 --n-best 5
mode "samples" --sample
mode "samples, temperature 0.5" --sample --temperature 0.5
mode "samples, top 10" --sample --top-k 10
mode "samples, top 0.9" --sample --top-p 0.9
n_best=1 mode "best of 20 samples" --sample --n-best 20
mode "first two words given" -b 5 --prefix "$out/prefix"
mode "two words given" -b 10 --constraints "$out/phrases"
if [ -n "$other" ]; then
    run=$other mode "the other model" -b 5
    mode "ensemble, probabilities" -b 5 -m "$other" --ensemble probability
    mode "ensemble, logarithms" -b 5 -m "$other" --ensemble log
fi
rm -f "$out/parts"
for part in 1 2 3; do
    call fusetk decode -m "$run" -i "$source" -b 5 --stop exact --shard "$part/3" --quiet \
        "${common[@]}" >> "$out/parts"
done
cmp "$out/parts" "$out/beam_5.txt" || die "the three parts together differ from $out/beam_5.txt"
printf '%s\n' "three parts (--shard I/3), one after the other: the same bytes as beam 5" \
    >> "$out/table.txt"
cat "$out/table.txt"
