#!/usr/bin/env bash
# Draw Figures 2, 3 and 4 of layer-wise coordination: attention of the first decoder layer when the
# token after "happened" is predicted.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

# The first case of Table 5, and the translations of both systems there.
source='zwei minuten später passierten drei dinge gleichzeitig.'
transformer_translation='two minutes later, three things happened.'
coordinated_translation='two minutes later, three things happened at the same time.'

usage() {
    cat << END
Usage: $(basename "$0") [OUT] [--seed N] [--checkpoint LABEL] [-o PICTURE]

Draws the source-target attention and the self-attention of the Transformer (Figures 2 and 3) when
it predicts the full stop, and the mixed attention of layer-wise coordination (Figure 4) when it
predicts "at": a row for each head of the first layer. The runs are in OUT
($ROOT/work/lwc_iwslt14_deen), the output of
\`fusetk run recipes/lwc/iwslt14_deen/NAME.yaml --raw DIR\` for NAME transformer and coordinated.

  --seed N             seed of the runs (1)
  --checkpoint LABEL   best (the default), last, average-5, ...
  -o PICTURE           name with a place for the number of the figure (OUT/figure%d.png)
END
}

figure_options lwc/iwslt14_deen figure%d.png '--seed --checkpoint' "$@"
[[ $picture == *%d* ]] || die "-o $picture: write %d for the number of the figure"
transformer=$(run_of transformer)
coordinated=$(run_of coordinated)

# draw NUMBER RUN KIND TRANSLATION STEP: draw a figure.
draw() {
    # The arguments are UTF-8 in every locale.
    PYTHONUTF8=1 fusetk plot-attention -m "$2/checkpoints/$label" -s "$source" -t "$4" \
        --what "$3" --layer 1 --head all --step "$5" -o "${picture/\%d/$1}"
}

draw 2 "$transformer" cross "$transformer_translation" .
draw 3 "$transformer" decoder-self "$transformer_translation" .
draw 4 "$coordinated" mixed "$coordinated_translation" at
