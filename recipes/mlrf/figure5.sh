#!/usr/bin/env bash
# Draw MLRF's Figure 5: the weight of every layer at every target word, for each hop of Dec-SA.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

# The sentence of the figure. The paper prints it in pinyin.
source='斯里兰卡 交战 双方 同意 本月 下旬 在 日内瓦 谈判 。'

usage() {
    cat << END
Usage: $(basename "$0") [OUT] [--seed N] [--checkpoint LABEL] [-o PICTURE]

Translates the paper's sentence with Dec-SA (4 hops) and draws the attention of the fusion: columns
are target words, rows are layers (l0 is the word embedding), white is 1 and black is 0. The run is
in OUT ($ROOT/work/mlrf_nist_zhen), the output of
\`fusetk run recipes/mlrf/nist_zhen/dec_sa_4hops.yaml --raw DIR\`. For another sentence, call
\`fusetk plot-attention -m RUN --what decoder-fuse -s SENTENCE --colors grey -o PICTURE\`.

  --seed N             seed of the run (1)
  --checkpoint LABEL   best (the default), last, average-5, ...
  -o PICTURE           .png, .pdf, .svg or .html, or the numbers: .npz or .json (OUT/figure5.png)
END
}

figure_options mlrf/nist_zhen figure5.png '--seed --checkpoint' "$@"
run=$(run_of dec_sa_4hops)
# The sentence is UTF-8 in every locale.
PYTHONUTF8=1 fusetk plot-attention -m "$run/checkpoints/$label" --what decoder-fuse -s "$source" \
    --colors grey -o "$picture"
