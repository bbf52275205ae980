#!/usr/bin/env bash
# The demo, `fusetk demo`, with its output in work/demo.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

need_fusetk
exec fusetk demo --out "$ROOT/work/demo" "$@"
