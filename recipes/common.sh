# shellcheck shell=bash
# Functions of the recipes' scripts, which source this file. It sets ROOT, the project's folder. If
# fusetk is not on the path, it uses the environment of `make venv`.

# With CDPATH, `cd` prints the folder.
unset CDPATH
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

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

# absolute PATH: print the absolute path without `.` and needless slashes; PATH need not exist.
absolute() {
    local path=$1
    [[ $path == /* ]] || path=$PWD/$path
    path=$path/
    while [[ $path == *//* ]]; do path=${path//\/\//\/}; done
    while [[ $path == */./* ]]; do path=${path//\/.\//\/}; done
    [ "$path" = / ] || path=${path%/}
    printf '%s\n' "$path"
}

# need_value OPTION NUMBER: exit with an error if OPTION is the last of NUMBER arguments.
need_value() {
    [ "$2" -ge 2 ] || die "$1 needs a value; -h shows the usage"
}

# read_words NAME TEXT: set the array NAME to the words of TEXT, which may have several lines.
read_words() {
    read -r -d '' -a "$1" <<< "$2" || true
}

# call COMMAND ...: run a command. If the script gets SIGTERM, SIGINT or SIGHUP, it sends SIGTERM to
# the command, waits for its end and exits.
call() {
    local child code status=0 before signals=0
    "$@" <&0 &
    child=$!
    trap 'signals=$((signals + 1)); kill -s TERM "$child" 2> /dev/null || true' TERM INT HUP
    while :; do
        before=$signals code=0
        wait "$child" || code=$?
        # A second `wait` returns 127 if the first one had the status of the command.
        [ "$code" -eq 127 ] && [ "$signals" -gt 0 ] || status=$code
        [ "$signals" -ne "$before" ] || break
    done
    trap - TERM INT HUP
    [ "$signals" -eq 0 ] || exit "$((status ? status : 143))"
    return "$status"
}

# make_folder FOLDER: make the folder of --out; exit with an error if it cannot be made.
make_folder() {
    mkdir -p "$1" || die "$1 cannot be written: give another --out"
}

# lines FILE: print the number of lines of FILE, or of FILE.gz. The last one needs no newline.
lines() {
    if [ -e "$1" ]; then
        awk 'END { print NR }' < "$1"
    else
        gzip -dc "$1.gz" | awk 'END { print NR }'
    fi
}

# check_files FOLDER NAME ...: exit with an error if neither a file nor its .gz file exists.
check_files() {
    local folder=$1 name
    shift
    for name in "$@"; do
        [ -e "$folder/$name" ] || [ -e "$folder/$name.gz" ] ||
            die "neither $folder/$name nor $name.gz exists"
    done
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

# figure_options FOLDER PICTURE OPTIONS ARGUMENT ...: read the arguments of the script of a figure,
# [OUT] [-o PICTURE] and those of --seed N and --checkpoint LABEL that OPTIONS names. It sets
# `folder` to PAPER/TASK below recipes, and `out`, `seed`, `label` and `picture`.
# shellcheck disable=SC2034  # the scripts that source this file read `label`
figure_options() {
    local picture_option='' allowed=" $3 "
    folder=$1 picture=$2 seed=1 label=best out=
    shift 3
    while [ $# -gt 0 ]; do
        case $1 in
            --seed | --checkpoint)
                [[ $allowed == *" $1 "* ]] || die "there is no option $1; -h shows the usage" ;;
        esac
        case $1 in
            -h | --help) usage; exit 0 ;;
            --seed) need_value "$1" $#; seed=$2; shift 2 ;;
            --checkpoint) need_value "$1" $#; label=$2; shift 2 ;;
            -o) need_value "$1" $#; picture_option=$(absolute "$2"); shift 2 ;;
            -*) die "there is no option $1; -h shows the usage" ;;
            *)
                [ -z "$out" ] || die "one OUT is enough, $1 is too much"
                out=$(absolute "$1")
                shift
                ;;
        esac
    done
    out=${out:-$ROOT/work/${folder//\//_}}
    picture=${picture_option:-$out/$picture}
    need_fusetk
}

# run_of ROW: print the run folder of a row of `folder`; exit with an error if it does not exist.
run_of() {
    local run=$out/run.${folder#*/}.$1.seed$seed command
    [ -f "$ROOT/recipes/$folder/$1.yaml" ] || die "there is no row $1 in recipes/$folder"
    command="fusetk run recipes/$folder/$1.yaml --raw DIR --seed $seed --out $(printf %q "$out")"
    [ -f "$run/config.yaml" ] || die "$run does not exist: call \`$command\` first"
    printf '%s\n' "$run"
}
