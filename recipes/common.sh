# What the recipes' scripts share; to be sourced. Sets ROOT, and puts the environment of `make venv` in front when
# no other one that has fusetk is active.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if ! command -v fusetk > /dev/null && [ -x "$ROOT/.venv/bin/fusetk" ]; then
    PATH=$ROOT/.venv/bin:$PATH
fi

die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 2
}

say() {
    printf '\n== %s\n' "$1" >&2
}

# The Python that fusetk is installed for.
python() {
    command python3 "$@"
}

need_fusetk() {
    command -v fusetk > /dev/null || die "fusetk is not installed: run \`make venv\` in $ROOT first"
}

# absolute PATH: relative to where the script was called, whether PATH exists or not.
absolute() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# value OPTION [VALUE]: the value of an option, or an error.
value() {
    [ $# -ge 2 ] || die "$1 needs a value; see -h"
    printf '%s\n' "$2"
}

# newer A B: whether file A is missing or older than B, so that it must be made.
stale() {
    [ ! -e "$1" ] || [ "$2" -nt "$1" ]
}

# translate MODEL INPUT OUTPUT [OPTION ...]: unless OUTPUT is newer than the model.
translate() {
    local model=$1 input=$2 output=$3
    shift 3
    if stale "$output" "$model/state.json"; then
        fusetk decode -m "$model" -i "$input" -o "$output.part" "$@"
        mv "$output.part" "$output"
    fi
}
