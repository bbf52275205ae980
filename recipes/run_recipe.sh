#!/usr/bin/env bash
# Train and score any row of a paper's table, from raw text to BLEU: `fusetk run`, with the earlier
# name of an option.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

arguments=()
for argument in "$@"; do
    case $argument in
        --prepare-only) arguments+=(--until prep) ;;
        *) arguments+=("$argument") ;;
    esac
done
need_fusetk
exec fusetk run ${arguments[@]+"${arguments[@]}"}
