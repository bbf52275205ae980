#!/usr/bin/env bash
# Draw MLRF's Figure 4: accuracy on training and validation text during training.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

usage() {
    cat << END
Usage: $(basename "$0") [OUT] [--seed N] [-o PICTURE]

Draws the baseline with dropout 0.1 and 0.2, and Dec-SA. Their runs are in OUT
($ROOT/work/mlrf_iwslt14_deen), the output of
\`fusetk run recipes/mlrf/iwslt14_deen/NAME.yaml --raw DIR --until train\` for NAME
figure4_baseline, figure4_baseline_dropout_0.2 and figure4_dec_sa. Thin lines are training text.

  --seed N     seed of the runs (1)
  -o PICTURE   .png, .pdf or .svg, or the numbers: .npz or .json (OUT/figure4.png)
END
}

figure_options mlrf/iwslt14_deen figure4.png --seed "$@"
runs=()
for row in figure4_baseline figure4_baseline_dropout_0.2 figure4_dec_sa; do
    run=$(run_of "$row")
    runs+=("$run")
done
fusetk plot-curves "${runs[@]}" --what accuracy -o "$picture" \
    --names 'baseline p = 0.1,baseline p = 0.2,Dec-SA p = 0.1'
