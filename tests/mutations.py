"""Check that the tests notice errors: python tests/mutations.py [NUMBER ...] [--list].

Each mutation replaces a piece of code with a wrong one. The script copies the package and the tests
to a temporary folder, applies one mutation at a time there, and runs the tests that should fail. It
prints "killed" if they fail and "survived" if they pass, and a summary at the end. Without numbers
it runs all mutations. The exit status is 1 if a mutation survived, and 2 if a mutation does not fit
the code.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("fusetk", "tests", "tools", "recipes", "man", "docs")
COPIED += ("pyproject.toml", "setup.cfg", "README.md")
TIME_LIMIT = 900  # seconds for the tests of one mutation; a mutation that never ends is killed
TESTS_PASSED = 0  # exit statuses of pytest
TESTS_FAILED = 1


class Mutation(NamedTuple):
    """A piece of code, a wrong replacement, and the tests that should fail with it."""

    name: str
    file: str  # below fusetk/
    old: str  # must occur exactly once in the file
    new: str
    tests: tuple[str, ...]  # files below tests/
    select: str = ""  # expression for pytest -k, to save time


MUTATIONS = [
    # Layers that a site needs
    Mutation(
        "the loss without a layer of connect: cross is that without the stream below it",
        "evaluation/ablation.py",
        "output = layer_input.residual + changed",
        "output = changed",
        ("cli/test_ablate.py",),
        "cross and mean",
    ),
    Mutation(
        "the two languages of a shared stack have one mean",
        "evaluation/ablation.py",
        "any(isinstance(context, SourceContext) for context in contexts)",
        "False",
        ("cli/test_ablate.py",),
        "both_languages",
    ),
    # Progress
    Mutation(
        "a validation discards the updates before it from the averages",
        "training/loop.py",
        "        self.reporter.report(self.progress)\n        start =",
        "        self.reporter.restart()\n        start =",
        ("cli/test_progress.py",),
        "averages",
    ),
    Mutation(
        "a task that hides another one is not removed",
        "display.py",
        "            self.tasks.remove(task)",
        "            pass",
        ("cli/test_progress.py",),
        "inner",
    ),
    Mutation(
        "spinning is not shortened beside other programs",
        "spinning.py",
        "missing > SHORTEN_ABOVE",
        "missing > 99",
        ("test_spinning.py",),
        "missing",
    ),
    Mutation(
        "the limit of a container is rounded down",
        "processor.py",
        "math.ceil(min(",
        "int(min(",
        ("test_processor.py",),
        "usable",
    ),
    Mutation(
        "the run folder of a killed start is refused",
        "runs.py",
        "or (run / STARTING).exists()",
        "",
        ("training/test_faults.py",),
        "killed",
    ),
    Mutation(
        "the text of another data set is used",
        "datasets/make.py",
        'if existing["digest"] == origin["digest"]:',
        "if True:",
        ("datasets/test_datasets.py",),
        "another_data_set",
    ),
    # Loss and update
    Mutation(
        "label smoothing divides by V instead of V - 1",
        "training/loss.py",
        "smoothing / (len(weight) - 1)",
        "smoothing / len(weight)",
        ("training/test_loss.py",),
    ),
    Mutation(
        "the loss has the wrong sign",
        "training/loss.py",
        "return -(gap * log_p ",
        "return (gap * log_p ",
        ("training/test_loss.py",),
    ),
    Mutation(
        "the gradient of the logits lacks the smoothing term without kernels",
        "training/loss.py",
        "log_p.exp_().sub_(other)",
        "log_p.exp_()",
        ("nn/test_fused_transformer.py",),
    ),
    Mutation(
        "the last part of a long sum replaces the other parts",
        "nn/fused/blocked_products.h",
        "if (start || add) v",
        "if (add) v",
        ("nn/test_decoding_kernels.py",),
    ),
    Mutation(
        "all rows of 8 bits have the scale of the first one",
        "nn/fused/blocked_products.h",
        "numbers * row_scale[row] * scale",
        "numbers * row_scale[0] * scale",
        ("nn/test_decoding_kernels.py",),
    ),
    Mutation(
        "a decoder layer in one call has the bias of another map",
        "nn/fused/decoding.cpp",
        "after(after_self.at, y.at, layer.cross_out.bias, 1, after_cross.at);",
        "after(after_self.at, y.at, layer.self_out.bias, 1, after_cross.at);",
        ("contracts/test_decoding.py",),
    ),
    Mutation(
        "each chunk of rows of a decoder layer has the projections of the first one",
        "nn/fused/decoding.cpp",
        "steps[length - 1] + first * 3 * width",
        "steps[length - 1]",
        ("contracts/test_decoding.py",),
    ),
    Mutation(
        "the last part of a long sum in a product replaces the other parts",
        "nn/fused/products.cpp",
        ": 0, add || start,",
        ": 0, add,",
        ("nn/test_product_kernels.py",),
    ),
    Mutation(
        "all threads multiply by the first columns of a matrix",
        "nn/fused/products.cpp",
        "b.part(0, column)",
        "b.part(0, 0)",
        ("nn/test_product_kernels.py",),
    ),
    Mutation(
        "the last number of an odd count is missing in a product of bf16",
        "nn/fused/products.cpp",
        "!in_tiles && part % 2,",
        "false,",
        ("nn/test_product_kernels.py",),
    ),
    Mutation(
        "the rows of packed sentences are rounded although kernels compute the products",
        "nn/packed_layout.py",
        "and not products.replaced(dtype)",
        "",
        ("nn/test_packed_attention.py",),
    ),
    Mutation(
        "the gradient of the logits lacks the smoothing term in the kernel",
        "nn/fused/transformer.cpp",
        "put(at, v, logits[v] * inverse - other);",
        "put(at, v, logits[v] * inverse);",
        ("training/test_loss.py",),
    ),
    Mutation(
        "the gradients of embeddings are scaled like those of the convolutional encoder",
        "models/conv.py",
        "_scale_gradient(embedding, 1 / self.encoder_gradient_scale)",
        "embedding",
        ("models/test_conv.py",),
    ),
    Mutation(
        "a convolution drops no elements in the backward pass",
        "nn/fused/convolution.cpp",
        "sums[d] *= factor(bits[d])",
        "sums[d] *= a.drop.scale",
        ("nn/test_convolution_kernels.py",),
    ),
    Mutation(
        "the attention of convolutional models reads padding in the kernel",
        "nn/fused/convolution.cpp",
        "keys(a.lengths[index])",
        "keys(a.length)",
        ("nn/test_convolution_kernels.py",),
    ),
    Mutation(
        "a query of a packed sentence sees the next position",
        "nn/fused/transformer.cpp",
        "before + query + 1 : keys",
        "(before + query + 2 < keys ? before + query + 2 : keys) : keys",
        ("nn/test_packed_attention.py",),
    ),
    Mutation(
        "the residual sum drops other elements in the backward pass",
        "nn/fused/transformer.cpp",
        "put(by_y, d, grad[d] * factor(bits[d]))",
        "put(by_y, d, grad[d])",
        ("nn/test_fused_transformer.py",),
    ),
    Mutation(
        "the loss scale is not removed from the gradients",
        "training/update.py",
        "1 / scale",
        "1.0",
        ("training/test_scale.py",),
    ),
    Mutation(
        "the loss scale doubles one update too early",
        "training/gradient_check.py",
        "updates + 1 == GROWTH_INTERVAL",
        "updates + 2 == GROWTH_INTERVAL",
        ("training/test_scale.py",),
    ),
    Mutation(
        "gradients are divided by the number of batches too",
        "training/update.py",
        "factor = scale / tokens",
        "factor = scale / len(batches) / tokens",
        ("contracts/test_models.py",),
        "accumulation and transformer",
    ),
    Mutation(
        "the weight of an additional loss depends on the number of batches",
        "nn/additional_loss.py",
        "loss = loss * len(self.target_index)",
        "pass",
        ("training/test_additional_loss.py",),
        "split and transformer",
    ),
    Mutation(
        "a recomputed layer adds its loss again",
        "nn/additional_loss.py",
        "_Collecting(current.again())",
        "_Collecting(current)",
        ("training/test_additional_loss.py",),
        "recomputed",
    ),
    Mutation(
        "the next batch overwrites the loss of a CUDA graph",
        "training/cuda_graphs.py",
        "graph.sums.clone()",
        "graph.sums",
        ("training/test_cuda_graphs.py",),
        "losses_stay_valid",
    ),
    Mutation(
        "gradients of a failed pass stay in the tensors of CUDA graphs",
        "training/gradients.py",
        "self.graphs.clear()  # the gradients get other tensors",
        "pass",
        ("training/test_cuda_graphs.py",),
        "do_not_fit_into",
    ),
    Mutation(
        "CUDA graphs keep the dropout rates of the stage before",
        "training/loop.py",
        "self.gradients.start_stage()",
        "pass",
        ("training/test_cuda_graphs.py",),
        "training_with_graphs",
    ),
    Mutation(
        "the moving average uses the decay as the new weight",
        "training/ema.py",
        "1 - decay)",
        "decay)",
        ("training/test_ema.py",),
    ),
    Mutation(
        "the moving average starts with a wrong decay",
        "training/ema.py",
        "min(self.decay, (1 + update) / (10 + update))",
        "min(self.decay, (1 + update) / (11 + update))",
        ("training/test_ema.py",),
    ),
    Mutation(
        "checkpoint averaging divides by one too many",
        "training/average.py",
        "/ len(folders))",
        "/ (len(folders) + 1))",
        ("training/test_loop.py",),
        "average",
    ),
    # Learning rates
    Mutation(
        "the Vaswani schedule multiplies by the width's root",
        "training/schedule.py",
        "width**-0.5",
        "width**0.5",
        ("training/test_formulas.py",),
    ),
    Mutation(
        "the inverse square root starts one update late",
        "training/schedule.py",
        "(config.warmup / update) ** 0.5",
        "(config.warmup / (update - 1)) ** 0.5",
        ("training/test_formulas.py",),
    ),
    Mutation(
        "a plateau is a value that is better",
        "training/schedule.py",
        "return value < best - margin if",
        "return value > best - margin if",
        ("training/test_plateau.py",),
    ),
    Mutation(
        "Adafactor clips to the inverse",
        "training/adafactor.py",
        "(rms(update) / self.clip)",
        "(rms(update) * self.clip)",
        ("training/test_formulas.py", "training/test_optim.py"),
    ),
    # Loop and checkpoints
    Mutation(
        "an interrupted epoch repeats its last batch",
        "training/loop.py",
        "updates[progress.position :]",
        "updates[max(progress.position - 1, 0) :]",
        ("training/test_loop.py",),
    ),
    Mutation(
        "a stage with `start: best` keeps the last weights",
        "training/loop.py",
        "self.checkpoints.load_weights(folder)\n        self.reporter.task",
        "pass\n        self.reporter.task",
        ("training/test_loop.py",),
        "weights_of_the_best",
    ),
    Mutation(
        "the best checkpoint has the highest loss",
        "training/validation_config.py",
        "sign = 1 if",
        "sign = -1 if",
        ("training/test_parts.py",),
    ),
    Mutation(
        "BLEU counts as a metric that should be low",
        "runs.py",
        '{"loss", "smoothed", "ppl"}',
        '{"loss", "smoothed", "ppl", "bleu"}',
        ("training/test_parts.py",),
    ),
    Mutation(
        "the link to the last checkpoint is called best",
        "training/checkpoints.py",
        '"last", folder)\n        if progress',
        '"best", folder)\n        if progress',
        ("training/test_parts.py",),
    ),
    Mutation(
        "dropout draws the same numbers at each update",
        "training/gradients.py",
        "1_000_003 + updates",
        "1_000_003",
        ("training/test_parts.py",),
    ),
    Mutation(
        "all processes take the same batches",
        "training/parallel.py",
        "batches[world.rank :: world.size]",
        "batches[:: world.size]",
        ("training/test_parts.py",),
    ),
    # Data
    Mutation(
        "the order of an epoch ignores the seed",
        "data/sampler.py",
        "np.array([seed, epoch]",
        "np.array([0, epoch]",
        ("data/test_batches.py",),
    ),
    Mutation(
        "the order of all epochs is the same",
        "data/sampler.py",
        "np.array([seed, epoch]",
        "np.array([seed, 0]",
        ("data/test_batches.py",),
    ),
    Mutation(
        "a batch may exceed its size by one sentence",
        "data/sampler.py",
        'before + size, side="right")))',
        'before + size, side="right")) + 1)',
        ("data/test_batches.py",),
    ),
    Mutation(
        "a padded batch may exceed its size by one pair",
        "data/sampler.py",
        'padded.searchsorted(size, side="right"))',
        'padded.searchsorted(size, side="right")) + 1',
        ("data/test_batches.py",),
    ),
    Mutation(
        "the longer side is the target",
        "data/sampler.py",
        "return np.maximum(source, target)",
        "return target",
        ("data/test_batches.py",),
    ),
    Mutation(
        "a gain may be as small as the sum of the deviations",
        "reporting/gain.py",
        "self._gain(self.difference) > self.spread",
        "self._gain(self.difference) >= self.spread",
        ("reporting/test_gain.py",),
        "deviations",
    ),
    Mutation(
        "half of the seeds suffice for a gain",
        "reporting/gain.py",
        "SHARE = Fraction(2, 3)",
        "SHARE = Fraction(1, 2)",
        ("reporting/test_gain.py",),
        "thirds",
    ),
    Mutation(
        "two configs differ in the options of a component, and the recipe has another component",
        "reporting/deviations.py",
        "            names = list(actual)\n",
        "            pass\n",
        ("reporting/test_save_results.py",),
        "component",
    ),
    Mutation(
        "an average needs only one of its test sets",
        "reporting/runs.py",
        "if len(records) == len(sets) and",
        "if records and",
        ("cli/test_report.py",),
        "average",
    ),
    Mutation(
        "a run serves only the row that it names",
        "reporting/tables.py",
        "return complete and not config_deviations(run.config, row.config)",
        "return False",
        ("cli/test_report.py",),
        "serves or average",
    ),
    Mutation(
        "the parameters of a run are those of the recipe",
        "reporting/tables.py",
        "_count(recipes.load(run.folder / CONFIG), run_sizes",
        "_count(row.recipe, run_sizes",
        ("cli/test_report.py",),
        "its_own_model",
    ),
    Mutation(
        "the best values of similar runs overlap",
        "plotting/annotations.py",
        "text.xyann = (x, y + (box.y0 - start) * points_of_pixel)",
        "text.xyann = (x, y)",
        ("plotting/test_curves.py",),
        "overlap",
    ),
    Mutation(
        "the target input starts with EOS",
        "data/batch.py",
        "torch.full_like(tgt_out[:, :1], BOS)",
        "torch.full_like(tgt_out[:, :1], 3)",
        ("data/test_batches.py",),
    ),
    Mutation(
        "the padding mask covers one token too many",
        "data/batch.py",
        "mask = columns < lengths[:, None]",
        "mask = columns < lengths[:, None] - (lengths[:, None] > 1)",
        ("data/test_batches.py",),
    ),
    Mutation(
        "sentences of a corpus have no EOS",
        "data/corpus.py",
        "ids.append(EOS)",
        "ids.append(1)",
        ("data/test_prepare.py",),
    ),
    Mutation(
        "the vocabulary threshold of BPE is exclusive",
        "data/bpe.py",
        "int(count) >= threshold",
        "int(count) > threshold",
        ("data/test_bpe.py",),
    ),
    Mutation(
        "BPE dropout leaves out a merge at all its places together",
        "data/bpe.py",
        "                skipped.append(entry)\n                continue",
        "                skipped.append(entry)\n                break",
        ("data/test_bpe_dropout.py",),
        "as_frequent",
    ),
    Mutation(
        "BPE dropout decides twice on a merge between two new symbols",
        "data/bpe.py",
        "in {left for position in merged for left in (before[position], position)}:",
        "in [left for position in merged for left in (before[position], position)]:",
        ("data/test_bpe_dropout.py",),
        "as_frequent",
    ),
    Mutation(
        "all lines have the same random numbers",
        "data/encode.py",
        "{number} {self.side} {line}",
        "{number} {self.side}",
        ("data/test_bpe_dropout.py",),
        "other_places",
    ),
    Mutation(
        "all epochs read the first segmentation",
        "data/corpus.py",
        "self.segmentations[epoch % len(self.segmentations)]",
        "self.segmentations[0]",
        ("data/test_bpe_dropout.py", "training/test_segmentations.py"),
        "turn or each_epoch",
    ),
    Mutation(
        "the batches of an epoch are those of the text without dropout",
        "training/loop.py",
        "self.stages.updates(progress, corpus)",
        "self.stages.updates(progress, self.corpus)",
        ("training/test_segmentations.py",),
        "each_epoch",
    ),
    Mutation(
        "a word that ends a line keeps the joiner",
        "data/bpe.py",
        'r"(@@ )|(@@ ?$)"',
        'r"(@@ )"',
        ("data/test_bpe.py",),
    ),
    Mutation(
        "the filter's ratio is exclusive",
        "data/steps/filter.py",
        "long / short > self.max_ratio",
        "long / short >= self.max_ratio",
        ("data/test_filter.py",),
    ),
    Mutation(
        "the filter's greatest length is exclusive",
        "data/steps/filter.py",
        "long > self.max_length",
        "long >= self.max_length",
        ("data/test_filter.py",),
    ),
    Mutation(
        "the vocabulary's threshold is exclusive",
        "data/vocab.py",
        "if n >= threshold",
        "if n > threshold",
        ("data/test_vocab.py",),
    ),
    Mutation(
        "a YAML mapping without its ending is read as tokens and counts",
        "data/vocab.py",
        "is_mapping = (is_mapping or number == 1) and",
        "is_mapping = is_mapping and",
        ("data/test_vocab.py",),
    ),
    Mutation(
        "a test text that is the validation text has no warning",
        "data/manifest.py",
        'elif name not in ("train", "valid") and sums in validation:',
        'elif name not in ("train", "valid") and sums in training:',
        ("data/test_prepare.py",),
    ),
    Mutation(
        "a text of subwords has no warning",
        "data/subword_warnings.py",
        "<= MANY_SUBWORDS * len(tokens)",
        "<= len(tokens)",
        ("data/test_prepare.py",),
    ),
    Mutation(
        "the vocabulary's size does not count the special tokens",
        "data/vocab.py",
        "entries[: size - len(SPECIAL)]",
        "entries[:size]",
        ("data/test_vocab.py",),
    ),
    # Modules
    Mutation(
        "the scale of dropout is left out",
        "nn/dropout_mask.py",
        "return 1 / (1 - units * UNIT)",
        "return 1.0",
        ("nn/test_dropout.py",),
    ),
    Mutation(
        "the causal mask shows the next position",
        "nn/attention.py",
        ".tril(past)",
        ".tril(past + 1)",
        ("contracts/test_models.py",),
        "later and transformer",
    ),
    Mutation(
        "attention divides by d instead of its root",
        "nn/attention.py",
        "1 / math.sqrt(q.shape[-1])",
        "1 / q.shape[-1]",
        ("models/test_transformer.py",),
    ),
    Mutation(
        "attention to several layers is not scaled",
        "nn/attention.py",
        "contexts * sources**-0.5",
        "contexts",
        ("nn/test_cross_attention.py",),
    ),
    Mutation(
        "sinusoids swap sine and cosine",
        "nn/positions.py",
        "(angles.sin(), angles.cos())",
        "(angles.cos(), angles.sin())",
        ("models/test_transformer.py",),
    ),
    Mutation(
        "a cache overwrites the last slot",
        "nn/cache.py",
        "buffer[:, self.length : end] = new",
        "buffer[:, self.length - 1 : end - 1] = new",
        ("nn/test_cache.py",),
    ),
    Mutation(
        "a cache is not copied where two hypotheses share it",
        "nn/cache.py",
        "filled[0] != self.length or end",
        "end",
        ("nn/test_cache.py",),
    ),
    Mutation(
        "the GRU swaps its state and the candidate",
        "nn/cells.py",
        "h = (1 - z) * h + z * c",
        "h = z * h + (1 - z) * c",
        ("nn/test_cells.py",),
    ),
    # Models and fusions
    Mutation(
        "embeddings are not scaled",
        "models/block_model.py",
        "config.width**0.5",
        "1.0",
        ("models/test_transformer.py",),
    ),
    Mutation(
        "the residual sum of the convolutions is not scaled",
        "models/conv.py",
        "HALF = 0.5**0.5",
        "HALF = 0.5",
        ("models/test_conv.py",),
    ),
    Mutation(
        "attention of the convolutions lacks the scale of the source length",
        "models/conv.py",
        "(lengths.to(target) / sources).sqrt()",
        "(lengths.to(target) / sources)",
        ("models/test_conv.py",),
    ),
    Mutation(
        "the context gate swaps its inputs",
        "models/transformer.py",
        "torch.lerp(target, source,",
        "torch.lerp(source, target,",
        ("models/test_transformer.py",),
    ),
    Mutation(
        "the tree adds no residual",
        "fusion/tree.py",
        "return n if root or preceding is None else n + preceding",
        "return n",
        ("fusion/test_equations.py",),
        "tree",
    ),
    Mutation(
        "the mean of two layers is their sum",
        "fusion/aggregate.py",
        "0.5 * (a + b)",
        "(a + b)",
        ("fusion/test_equations.py",),
        "tree or iterative or mean",
    ),
    Mutation(
        "attention over the layers normalises over the hops",
        "fusion/attention.py",
        "LAYER_AXIS).softmax(LAYER_AXIS)",
        "LAYER_AXIS).softmax(-2)",
        ("fusion/test_equations.py",),
        "attention",
    ),
    Mutation(
        "hyper-connections mix the streams transposed",
        "models/residual/hyper.py",
        "(self.mix + self.input_scale * mix).mT",
        "(self.mix + self.input_scale * mix)",
        ("models/test_residual.py",),
        "hyper",
    ),
    Mutation(
        "Sinkhorn's normalisation ends with the columns",
        "models/residual/manifold.py",
        "logits.log_softmax(-2).log_softmax(-1)",
        "logits.log_softmax(-1).log_softmax(-2)",
        ("models/test_residual.py",),
        "manifold or mixing",
    ),
    Mutation(
        "the weights of permutations do not sum to 1",
        "models/residual/manifold.py",
        "logits.softmax(-1) @",
        "logits.sigmoid() @",
        ("models/test_residual.py",),
        "permut",
    ),
    Mutation(
        "a replaced attribute of a base class is accepted",
        "nn/reserved.py",
        "if new is not value and not equal:",
        "if False:",
        ("training/test_verify.py",),
        "breaks_a_rule",
    ),
    Mutation(
        "a buffer may change in evaluation",
        "training/verify.py",
        "                check_buffers_in_evaluation(model, pairs)\n",
        "                pass\n",
        ("training/test_verify.py",),
        "breaks_a_rule",
    ),
    Mutation(
        "values that the seed does not fix are accepted",
        "training/verify_construction.py",
        "n in second and not _equal(first[n], second[n])",
        "False",
        ("training/test_verify.py",),
        "seed_fixes",
    ),
    Mutation(
        "equal passes of a class outside fusetk are not compared",
        "training/verify_training.py",
        "if not ((features(pairs) - first).abs() <= tolerance).all():",
        "if False:",
        ("training/test_verify.py",),
        "OwnGenerator",
    ),
    Mutation(
        "every layer uses its own values only",
        "nn/value_residual.py",
        "a * x.first + b * v",
        "v",
        ("models/test_value_residual.py",),
        "equation",
    ),
    Mutation(
        "the kernel of attention over the depth does not subtract the mean gradient",
        "nn/fused/streams.cpp",
        "(by_scales[i] - mean)",
        "(by_scales[i])",
        ("nn/test_fused_streams.py",),
        "depth",
    ),
    Mutation(
        "the higher feed-forward layers are not wider",
        "models/transformer_layer.py",
        "if not side.ffn_growth:",
        "if side.ffn_growth:",
        ("models/test_modern.py",),
        "wider",
    ),
    Mutation(
        "attention residuals do not normalise the keys",
        "models/residual/attention.py",
        "squeeze(-2) * scales",
        "squeeze(-2)",
        ("models/test_residual.py",),
        "attention",
    ),
    Mutation(
        "a block of attention residuals has one sub-layer too many",
        "models/residual/attention.py",
        "if sublayers + 1 < self.block:",
        "if sublayers < self.block:",
        ("models/test_residual.py",),
        "attention",
    ),
    Mutation(
        "dynamic connections read their weights from the embedding",
        "models/connect/mudd.py",
        "layers[..., -1, :]",
        "layers[..., 0, :]",
        ("models/test_connect.py",),
    ),
    Mutation(
        "the sources of deep cross-attention are outputs, not differences",
        "models/connect/cross.py",
        "self.project(layers + 1, output) - layer_input.residual",
        "self.project(layers + 1, output)",
        ("models/test_connect.py",),
    ),
    Mutation(
        "depth-weighted connections read the wrong layers of a dilation",
        "models/connect/depth_weighted.py",
        "slice(i % self.dilation, None",
        "slice(0, None",
        ("models/test_connect.py",),
    ),
    Mutation(
        "rotary positions restart in every step",
        "nn/grouped_attention.py",
        "self._projections(x, start)\n        keys_values",
        "self._projections(x, 0)\n        keys_values",
        ("models/test_modern.py",),
    ),
    Mutation(
        "a custom self-attention forgets the positions of earlier tokens",
        "nn/cache.py",
        "torch.cat((self.positions, positions))",
        "torch.cat((0 * self.positions, positions))",
        ("models/test_self_attention.py",),
    ),
    Mutation(
        "a module that mixes positions is not named",
        "training/verify_positions.py",
        "not all(map(_near, whole, joined))",
        "False",
        ("training/test_verify.py",),
        "breaks_a_rule",
    ),
    Mutation(
        "linear weights start at 1",
        "fusion/linear.py",
        "1 / layers",
        "1.0",
        ("fusion/test_initial_weights.py",),
    ),
    # Search
    Mutation(
        "the length penalty is dropped",
        "decoding/scores.py",
        "return length**alpha",
        "return length**0.0",
        ("decoding/test_scores.py", "decoding/test_beam.py"),
    ),
    Mutation(
        "the GNMT penalty adds 6",
        "decoding/scores.py",
        "((5 + length) / 6)",
        "((6 + length) / 6)",
        ("decoding/test_scores.py",),
    ),
    Mutation(
        "the least length is one too low",
        "decoding/token_mask.py",
        ">= length)",
        "> length)",
        ("decoding/test_search_options.py",),
    ),
    Mutation(
        "no repeated n-gram: one token is forgotten",
        "decoding/token_mask.py",
        "tokens.shape[1] - size + 1 :",
        "tokens.shape[1] - size + 2 :",
        ("decoding/test_search_options.py",),
    ),
    Mutation(
        "an ensemble adds probabilities without dividing",
        "decoding/ensemble.py",
        "log_probs + shares.log()",
        "log_probs + weights.view_as(shares).log()",
        ("decoding/test_beam.py", "decoding/test_forced.py"),
    ),
    Mutation(
        "a group pays for the tokens of other groups twice",
        "decoding/beam.py",
        "is_live.to(cost) * self.config.diversity",
        "2 * is_live.to(cost) * self.config.diversity",
        ("decoding/test_search_options.py",),
    ),
    Mutation(
        "forced decoding drops EOS",
        "decoding/target_scores.py",
        "[*target, EOS]",
        "[*target, 1]",
        ("decoding/test_forced.py",),
    ),
    Mutation(
        "hard alignment counts the EOS of the source",
        "decoding/alignment.py",
        "weights[:-1, :-1]",
        "weights[:-1]",
        ("decoding/test_alignment.py",),
    ),
    Mutation(
        "top-p keeps one token too few",
        "decoding/sample.py",
        "before >= config.top_p",
        "before > 0.5 * config.top_p",
        ("decoding/test_sample.py",),
    ),
    # Evaluation
    Mutation(
        "multi-bleu splits words at every Unicode space",
        "evaluation/multi_bleu.py",
        "line.translate(_REPLACE_OTHER_SPACE)",
        "line",
        ("evaluation/test_metrics.py",),
    ),
    Mutation(
        "mteval-v13a changes the case of all letters",
        "evaluation/sacrebleu_metrics.py",
        "tokenized.translate(_ASCII_LOWER)",
        "tokenized.lower()",
        ("evaluation/test_metrics.py",),
    ),
    Mutation(
        "a sentence on the upper bound of a length bin is in none",
        "evaluation/length.py",
        "length <= self.most",
        "length < self.most",
        ("evaluation/test_length.py",),
    ),
    Mutation(
        "equal systems get a small p",
        "evaluation/significance.py",
        "if not real > TIE:",
        "if False:",
        ("evaluation/test_significance.py",),
    ),
    Mutation(
        "rescoring ignores the exponent of the length penalty",
        "evaluation/rescore.py",
        "](length, self.normalize)",
        "](length, 0.0)",
        ("cli/test_rescore.py",),
    ),
    # Experiments, data sets, estimates, devices
    Mutation(
        "a translation is up to date whatever it was made from",
        "experiment/products.py",
        "record == _record(file, inputs)",
        "record is not None",
        ("experiment/test_run.py",),
        "again or inputs",
    ),
    Mutation(
        "references come in the order of their file",
        "datasets/formats.py",
        "result.append([reference[key] for key in keys])",
        "result.append(list(reference.values()))",
        ("datasets/test_datasets.py",),
    ),
    Mutation(
        "a resumed download begins anew",
        "datasets/fetch.py",
        'open(part, "ab")',
        'open(part, "wb")',
        ("datasets/test_datasets.py",),
    ),
    Mutation(
        "parts of two versions of a file are joined",
        "datasets/fetch.py",
        ', "If-Range": version}',
        "}",
        ("datasets/test_datasets.py",),
    ),
    Mutation(
        "a killed call leaves a text without its references",
        "datasets/make.py",
        "in reversed(list(zip(parts, names, strict=True)))",
        "in zip(parts, names, strict=True)",
        ("datasets/test_datasets.py",),
    ),
    Mutation(
        "an average of the last checkpoints has older ones",
        "training/average.py",
        "takewhile(existing",
        "filter(existing",
        ("training/test_parts.py",),
        "last",
    ),
    Mutation(
        "a repeated validation is recorded twice",
        "training/log.py",
        "progress.update + (not repeated)",
        "progress.update + 1",
        ("training/test_log.py",),
    ),
    Mutation(
        "NaN is among the best validations",
        "training/checkpoints.py",
        "            if not math.isnan(value)\n",
        "",
        ("training/test_parts.py",),
        "number",
    ),
    Mutation(
        "a run starts from raw weights",
        "training/start_from.py",
        'file = EMA if EMA in read_state(folder)["sha256"] else MODEL',
        "file = MODEL",
        ("training/test_start_from.py",),
        "average",
    ),
    Mutation(
        "products in place are not counted",
        "estimate/operations.py",
        "2 * a[0] * a[1] * b[1]",
        "0 * a[0]",
        ("estimate/test_estimate.py",),
        "formula or projected",
    ),
    Mutation(
        "the recurrent model reads lengths from the device in training",
        "models/recurrent.py",
        "source_lengths, target_lengths = lengths or (None, None)",
        "source_lengths, target_lengths = None, None",
        ("contracts/test_meta.py",),
        "update",
    ),
    # Starting from existing runs, export, service
    Mutation(
        "rows of known tokens are copied in the order of ids",
        "training/start_from.py",
        "known = [(i, old.ids[token])",
        "known = [(i, min(i, len(old) - 1))",
        ("training/test_start_from.py",),
        "another_order",
    ),
    Mutation(
        "an extended vocabulary is sorted anew",
        "data/binarize.py",
        "existing.tokens[len(SPECIAL) :] + added.tokens[len(SPECIAL) :]",
        "added.tokens[len(SPECIAL) :] + existing.tokens[len(SPECIAL) :]",
        ("training/test_start_from.py",),
        "extended_at_its_end",
    ),
    Mutation(
        "the queue of the service has no bound",
        "serving/batching.py",
        "if self.waiting + len(items) > self.queue:",
        "if False:",
        ("test_serving.py",),
        "bounded",
    ),
    Mutation(
        "the service searches for clients that have disconnected",
        "serving/batching.py",
        "if all(job.result.cancelled() for job in jobs):",
        "if False:",
        ("test_serving.py",),
        "ends_when_all",
    ),
    Mutation(
        "a new highest logit does not change the sum of a row",
        "nn/fused/best_tokens.h",
        "total *= exp_(fill(highest - block_highest));",
        "",
        ("nn/test_decoding_kernels.py",),
        "unusual_rows",
    ),
    Mutation(
        "the screen of a greedy search ignores the rounding of its inputs",
        "nn/fused/best_tokens.h",
        "error * length + norm * rounding +",
        "error * length +",
        ("nn/test_decoding_kernels.py",),
        "screen_finds",
    ),
    Mutation(
        "sums of 16 bits do not limit the weights of 8 bits",
        "nn/int8.py",
        "return _round(weight, torch.maximum(*sums))",
        "return quantize(weight)",
        ("nn/test_decoding_kernels.py",),
        "sums_of_16_bits",
    ),
    Mutation(
        "the maps of fusions are not converted for inference",
        "models/quantization.py",
        "for part in (*model.layers(), *fusions):",
        "for part in model.layers():",
        ("contracts/test_decoding.py",),
        "maps_of_fusions",
    ),
    Mutation(
        "kernels do not compute sharded models during validation",
        "training/sharding.py",
        "unit.__class__ = type(unit).__mro__[2]",
        "pass",
        ("training/test_sharding.py",),
        "each_backbone",
    ),
    Mutation(
        "the service truncates sentences that are too long",
        "serving/app.py",
        "results.append([] if length <= most else too_long)",
        "results.append([])",
        ("test_serving.py",),
        "too_many_tokens",
    ),
    Mutation(
        "the explorer answers web pages of other names",
        "exploring/app.py",
        "make_service(endpoints, batcher, hosts)",
        'make_service(endpoints, batcher, ["*"])',
        ("exploring/test_explore_api.py",),
        "other_names",
    ),
    Mutation(
        "the explorer answers pages of other sites",
        "serving/http.py",
        'get("sec-fetch-site") == "cross-site"',
        'get("sec-fetch-site") == "none"',
        ("exploring/test_explore_api.py",),
        "other_sites",
    ),
    Mutation(
        "probable tokens belong to the step before",
        "decoding/next_tokens.py",
        "table = zip(best.indices.tolist()",
        "table = zip(best.indices.roll(1, 0).tolist()",
        ("decoding/test_next_tokens.py",),
    ),
    Mutation(
        "repeated samples count once in minimum Bayes risk decoding",
        "decoding/mbr.py",
        "mass[text] += weight",
        "mass[text] = weight",
        ("decoding/test_mbr.py",),
        "samples_have_equal_weights",
    ),
    Mutation(
        "true is accepted as a number in a config",
        "config/schema.py",
        "types & {int, float} and bool not in types",
        "False",
        ("cli/test_user_errors.py",),
        "our_words",
    ),
]


def misfit(mutation: Mutation) -> str:
    """Return why a mutation cannot be applied, or an empty string."""
    path = ROOT / "fusetk" / mutation.file
    if not path.is_file():
        return f"fusetk/{mutation.file} is missing"
    count = path.read_text(encoding="utf-8").count(mutation.old)
    if count != 1:
        return f"{mutation.old!r} occurs {count} times in fusetk/{mutation.file}, not once"
    for name in mutation.tests:
        if not (ROOT / "tests" / name).is_file():
            return f"tests/{name} is missing"
    names = (*mutation.tests, "contracts/systems.py")  # the latter has the systems' names
    text = "".join((ROOT / "tests" / name).read_text(encoding="utf-8") for name in names)
    for word in set(re.findall(r"\w+", mutation.select)) - {"and", "or", "not"}:
        if word not in text:
            files = ", ".join(f"tests/{name}" for name in mutation.tests)
            return f"{word!r} in the selection of tests is not in {files}"
    return ""


def run_mutation(mutation: Mutation, copy: Path) -> str:
    """Apply a mutation in the copy, run its tests and undo it.

    Return "killed", "survived" or an error.
    """
    path = copy / "fusetk" / mutation.file
    original = path.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"tests/{name}" for name in mutation.tests]
    if mutation.select:
        command += ["-k", mutation.select]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        completed = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(original, encoding="utf-8")
    if completed.returncode == TESTS_FAILED:
        return "killed"
    if completed.returncode == TESTS_PASSED:
        return "survived"
    return "error: pytest did not run the tests\n" + completed.stdout + completed.stderr


def copy_project(folder: Path) -> None:
    """Copy the package, the tests and what they read."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy2(source, folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="1 is the first")
    parser.add_argument("--list", action="store_true", help="print the mutations, run nothing")
    options = parser.parse_args()
    numbers = options.numbers or range(1, len(MUTATIONS) + 1)
    if any(not 1 <= number <= len(MUTATIONS) for number in numbers):
        parser.error(f"the mutations have the numbers 1 to {len(MUTATIONS)}")
    misfits = {number: misfit(MUTATIONS[number - 1]) for number in numbers}
    for number, reason in misfits.items():
        if reason:
            print(f"{number:3} {MUTATIONS[number - 1].name}: error: {reason}", file=sys.stderr)
    if any(misfits.values()):
        return 2
    if options.list:
        for number in numbers:
            print(f"{number:3} {MUTATIONS[number - 1].name}")
        return 0
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy_project(Path(folder))
        for number in numbers:
            mutation = MUTATIONS[number - 1]
            start = time.monotonic()
            outcome = run_mutation(mutation, Path(folder))
            seconds = time.monotonic() - start
            print(f"{number:3} {mutation.name}: {outcome} ({seconds:.0f} s)", flush=True)
            outcomes[outcome.partition(":")[0]] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    if outcomes["error"]:
        return 2
    return 1 if outcomes["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
