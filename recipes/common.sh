# shellcheck shell=bash
# Functions of the recipes' scripts, which source this file. It sets ROOT, the project's folder. If
# fusetk is not on the path, it uses the environment of `make venv`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if ! command -v fusetk > /dev/null && [ -x "$ROOT/.venv/bin/fusetk" ]; then
    PATH=$ROOT/.venv/bin:$PATH
fi

# die TEXT: print an error and exit with 2.
die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 2
}

# say TEXT: print the title of the next step.
say() {
    printf '\n== %s\n' "$1" >&2
}

need_fusetk() {
    command -v fusetk > /dev/null || die "fusetk is not installed: run \`make venv\` in $ROOT first"
    python3 -c 'import fusetk' 2> /dev/null ||
        die "python3 cannot import fusetk: activate its environment first"
}

# absolute PATH: print the absolute path; PATH need not exist.
absolute() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# need_value OPTION NUMBER: exit with an error if OPTION is the last of NUMBER arguments.
need_value() {
    [ "$2" -ge 2 ] || die "$1 needs a value; -h shows the usage"
}

# lock_run RUN: lock RUN until the script ends. It is an error if another script has the lock.
# Uses the descriptor 9.
lock_run() {
    exec 9>> "$(dirname "$1")/.$(basename "$1").lock"
    python3 "$ROOT/recipes/lock.py" 9 ||
        die "another script works on $1: wait until it ends, or name another --out"
}

# lock_data FOLDER: lock FOLDER for preparation until unlock_data; wait for a script that has the
# lock. Uses the descriptor 8.
lock_data() {
    exec 8>> "$(dirname "$1")/.$(basename "$1").lock"
    python3 "$ROOT/recipes/lock.py" 8 "waiting for another script, which prepares text in $1"
}

unlock_data() {
    exec 8>&-
}

# read_row CONFIG RAW PREPARED [KEY=VALUE ...]: read CONFIG with these keys changed. It sets source,
# target, seed, keep_last, lowercase, tests, the checkpoint (empty if the paper names none) and the
# metrics of the published score, and settings: the options of fusetk that change the keys and the
# paths of the text.
read_row() {
    local facts fact value setting
    # shellcheck disable=SC2034
    source='' target='' seed='' keep_last='' checkpoint='' lowercase=() tests=() settings=()
    # shellcheck disable=SC2034
    row_metrics=()
    facts=$(python3 "$ROOT/recipes/row.py" facts "$@")
    while IFS=$'\t' read -r fact value; do
        # shellcheck disable=SC2034
        case $fact in
            source) source=$value ;;
            target) target=$value ;;
            seed) seed=$value ;;
            average) keep_last=$value ;;
            checkpoint) checkpoint=$value ;;
            metric) row_metrics+=("$value") ;;
            lowercase) lowercase=(--lowercase) ;;
            test) tests+=("$value") ;;
            set) settings+=(--set "$value") ;;
        esac
    done <<< "$facts"
    shift 3
    for setting in "$@"; do
        settings+=(--set "$setting")
    done
}

# lines FILE: print the number of lines of FILE, or of FILE.gz.
lines() {
    if [ -e "$1" ]; then
        wc -l < "$1" | tr -d ' '
    else
        gzip -dc "$1.gz" | wc -l | tr -d ' '
    fi
}

# stale FILE SOURCE: whether FILE is missing or older than SOURCE.
stale() {
    [ ! -e "$1" ] || [ "$2" -nt "$1" ]
}

# average RUN N: average the last N checkpoints, or all if the run has fewer, unless the average is
# newer than they are. It sets `averaged` to the path.
average() {
    local run=$1 last=$2 checkpoints=("$1"/checkpoints/update-*)
    [[ $last =~ ^[1-9][0-9]*$ ]] ||
        die "the number of checkpoints to average is a whole number above 0, not $last"
    [ "${#checkpoints[@]}" -ge "$last" ] || last=${#checkpoints[@]}
    averaged=$run/checkpoints/average-$last
    if stale "$averaged/state.json" "$run/checkpoints/last/state.json"; then
        fusetk average "$run" --last "$last" --name "average-$last"
    fi
}

# published RUN N: average checkpoints as the published score needs them, and set `decoded` to the
# paths of the checkpoints to translate with. N, if it is not empty, is the number of checkpoints of
# a further average. If the paper names no checkpoint, they are the best one and an average.
published() {
    local run=$1 last=$2
    decoded=()
    case $checkpoint in
        '') decoded=("$run/checkpoints/best") last=${last:-$keep_last} ;;
        average-*)
            average "$run" "${checkpoint#average-}"
            decoded=("$averaged")
            ;;
        *) decoded=("$run/checkpoints/$checkpoint") ;;
    esac
    [ -n "$last" ] || return 0
    average "$run" "$last"
    [ "$averaged" = "${decoded[0]}" ] || decoded+=("$averaged")
}

# translate CHECKPOINT INPUT OUTPUT [OPTION ...]: translate, unless OUTPUT is newer than the
# checkpoint and the config of its run.
translate() {
    local model input=$2 output=$3
    model=$(cd "$1" && pwd -P)
    shift 3
    if stale "$output" "$model/state.json" || stale "$output" "$model/../../config.yaml"; then
        fusetk decode -m "$model" -i "$input" -o "$output.part" "$@"
        mv "$output.part" "$output"
    fi
}

# check_multi30k DATA [ANY]: exit with an error if a file of Multi30k is missing in DATA, or
# incomplete. With ANY, do not check the number of lines.
check_multi30k() {
    local advice='get it from data/task1/raw of https://github.com/multi30k/dataset'
    local set name file count
    for set in train:29000 val:1014 test_2016_flickr:1000; do
        for name in "${set%:*}.de" "${set%:*}.en"; do
            file=$1/$name
            [ -e "$file" ] || [ -e "$file.gz" ] || die "neither $file nor $name.gz exists: $advice"
            [ -z "${2:-}" ] || continue
            count=$(lines "$file") || die "$file.gz cannot be unpacked: $advice"
            [ "$count" -eq "${set#*:}" ] ||
                die "$file has $count lines and should have ${set#*:}: $advice"
        done
    done
}
