#!/usr/bin/env bash
# Draw DTMT's Figure 3: BLEU of sentences longer than 0, 10, ..., 60 words, on MT02, MT03, MT04,
# MT05 and MT08 as one test set.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

sets=(MT02 MT03 MT04 MT05 MT08)  # the caption says four sets, the text names these five

usage() {
    cat << END
Usage: $(basename "$0") [OUT] [--systems "NAME ..."] [--seed N] [--checkpoint LABEL]
       [--add NAME=RUN ...] [-o PICTURE]

Merges ${sets[*]} (sources, all references, each system's translations) from OUT
($ROOT/work/dtmt_nist_zhen), the output of
\`fusetk run recipes/dtmt/nist_zhen/NAME.yaml --raw DIR\` for each NAME. Scores the sentences with
more Chinese words than each bound (multi-bleu-lc), prints the table and draws it.

  --systems "NAME ..."   rows (dtmt4 dtmt1 shallow transformer_big)
  --seed N               seed of their runs (1)
  --checkpoint LABEL     the decoded checkpoint: best (the default), average-5, ...
  --add NAME=RUN         a further system: RUN contains its translations of the same text,
                         MT02.LABEL.txt and so on; repeatable
  -o PICTURE             .png, .pdf or .svg (OUT/figure3.png)
END
}

folder=dtmt/nist_zhen out='' picture=''
systems='dtmt4 dtmt1 shallow transformer_big' seed=1 label=best
added=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --systems) need_value "$1" $#; systems=$2; shift 2 ;;
        --seed) need_value "$1" $#; seed=$2; shift 2 ;;
        --checkpoint) need_value "$1" $#; label=$2; shift 2 ;;
        --add)
            need_value "$1" $#
            [[ $2 == ?*=?* ]] || die "--add $2: write it as NAME=RUN"
            added+=("${2%%=*}=$(absolute "${2#*=}")"); shift 2 ;;
        -o) need_value "$1" $#; picture=$(absolute "$2"); shift 2 ;;
        -*) die "there is no option $1; -h shows the usage" ;;
        *)
            [ -z "$out" ] || die "one OUT is enough, $1 is too much"
            out=$(absolute "$1")
            shift
            ;;
    esac
done
out=${out:-$ROOT/work/${folder//\//_}}
picture=${picture:-$out/figure3.png}
prepared=$out/data.nist_zhen references_folder=$out/references.nist_zhen merged=$out/figure3
[ -d "$prepared" ] ||
    die "$prepared does not exist: call \`fusetk run\` with rows of recipes/$folder first"
read_words systems "$systems"
[ "$((${#systems[@]} + ${#added[@]}))" -gt 0 ] || die "--systems names no system"
need_fusetk

# Names in the figure, and the folders of the translations.
runs=()
for system in ${systems[@]+"${systems[@]}"}; do
    case $system in
        dtmt[0-9]) name="DTMT#${system#dtmt}" ;;
        shallow) name=ShallowRNMT ;;
        transformer_big) name='Transformer (BIG)' ;;
        *) name=$system ;;
    esac
    run=$(run_of "$system")
    runs+=("$name=$run")
done
runs+=(${added[@]+"${added[@]}"})

# merge OUTPUT FILE ...: concatenate the files.
merge() {
    local output=$1 file
    shift
    for file in "$@"; do
        [ -f "$file" ] ||
            die "$file does not exist: translate ${sets[*]} first, with \`fusetk run\`"
    done
    awk 1 "$@" > "$output"  # the last line of a file needs no newline
}

# files BEFORE AFTER: set `paths` to BEFORE, a set and AFTER, for each set.
files() {
    local set
    paths=()
    for set in "${sets[@]}"; do
        paths+=("$1$set$2")
    done
}

mkdir -p "$merged"
files "$prepared/test." .zh.txt
merge "$merged/source.zh" "${paths[@]}"
files "$prepared/test." .en.txt
merge "$merged/reference.en" "${paths[@]}"
references=(-r "$merged/reference.en")
for number in 1 2 3; do
    files "$references_folder/" "/$number.txt"
    existing=()
    for file in "${paths[@]}"; do
        [ ! -f "$file" ] || existing+=("$file")
    done
    [ "${#existing[@]}" -gt 0 ] || continue
    [ "${#existing[@]}" -eq "${#paths[@]}" ] ||
        die "${#existing[@]} of ${#paths[@]} sets have reference $number: give it for all or none"
    merge "$merged/reference.en$number" "${paths[@]}"
    references+=(-r "$merged/reference.en$number")
done
say "${sets[*]} as one, $((${#references[@]} / 2)) references"
options=() translations=()
for i in "${!runs[@]}"; do
    files "${runs[$i]#*=}/" ".$label.txt"
    merge "$merged/system$i.en" "${paths[@]}"
    if [ "$i" -eq 0 ]; then
        translations=("$merged/system$i.en" --name "${runs[$i]%%=*}")
    else
        options+=(--system "${runs[$i]%%=*}=$merged/system$i.en")
    fi
done
fusetk score "${translations[@]}" "${references[@]}" --by-length --longer-than \
    --source "$merged/source.zh" ${options[@]+"${options[@]}"} --metric multi-bleu-lc -o "$picture"
