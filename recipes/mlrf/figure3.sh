#!/usr/bin/env bash
# Draw MLRF's Figure 3: BLEU of Dec-SA by its number of attention hops.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [OUT] [-o PICTURE]

Draws the scores of all runs of figure3_*.yaml in OUT ($ROOT/work/mlrf_iwslt14_deen), the output
of \`fusetk run recipes/mlrf/iwslt14_deen/figure3_hops_1.yaml --raw DIR\` and so on. A run of
another row with the same config counts, such as dec_sa_4hops.yaml. The dashed line is the
baseline. Circles are the paper's numbers. Scores of several seeds are averaged.

  -o PICTURE   .png, .pdf or .svg (OUT/figure3.png)
END
}

figure_options mlrf/iwslt14_deen figure3.png '' "$@"
row=recipes/mlrf/iwslt14_deen/figure3_hops_1.yaml
[ -d "$out" ] ||
    die "$out does not exist: call \`fusetk run $row --raw DIR --out $(printf %q "$out")\` first"
report=$(fusetk report "$ROOT"/recipes/mlrf/iwslt14_deen/figure3_*.yaml --runs "$out" --json)
python3 "$ROOT/recipes/mlrf/figure3.py" "$picture" "$out" <<< "$report"
