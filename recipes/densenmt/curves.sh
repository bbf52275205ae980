#!/usr/bin/env bash
# Draw a figure with DenseNMT's curves: the loss of a dense and a residual system during training.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

usage() {
    cat << END
Usage: $(basename "$0") TASK [OUT] [--seed N] [-o PICTURE]

TASK is iwslt14_deen, iwslt14_tren or iwslt14_tren_morph (BASE-4L and DenseNMT-4L-2), or
wmt14_ende (ConvS2S-En-De-15 and DenseNMT-En-De-15). Draws loss on training and validation text by
epoch. The paper shows the loss on the test text for WMT, and only the epochs before the first
reduction of the rate for IWSLT. The runs are in OUT ($ROOT/work/densenmt_TASK), the output of
\`fusetk run recipes/densenmt/TASK/NAME.yaml --raw DIR --until train\` for NAME base_4l_e256 and
densenmt_4l_2_e256, or convs2s_en_de_15 and densenmt_en_de_15.

  --seed N     seed of the runs (1)
  -o PICTURE   .png, .pdf or .svg, or the numbers: .npz or .json (OUT/curves.png)
END
}

case ${1:-} in
    iwslt14_deen | iwslt14_tren | iwslt14_tren_morph)
        rows=(base_4l_e256 densenmt_4l_2_e256) names=BASE-4L,DenseNMT-4L-2 ;;
    wmt14_ende)
        rows=(convs2s_en_de_15 densenmt_en_de_15) names=ConvS2S-En-De-15,DenseNMT-En-De-15 ;;
    -h | --help) usage; exit 0 ;;
    *) die "give TASK, one of iwslt14_deen, iwslt14_tren, iwslt14_tren_morph and wmt14_ende" ;;
esac
figure_options "densenmt/$1" curves.png --seed "${@:2}"
runs=()
for row in "${rows[@]}"; do
    run=$(run_of "$row")
    runs+=("$run")
done
fusetk plot-curves "${runs[@]}" --what loss --x epochs --names "$names" -o "$picture"
