"""Measure the memory that a training batch keeps for its gradients.

    python tests/benchmarks/memory.py CONFIG [CONFIG ...]

The data of each config must be prepared. The script counts each storage that exists after the
forward pass of the first batch and did not exist before, whether autograd or a backward pass of our
own needs it. The result does not depend on the machine's speed.
"""

import gc
from pathlib import Path

import torch

from turns import options  # isort: skip

from fusetk import system
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import batches
from fusetk.machine import device_of
from fusetk.recipe import load
from fusetk.runs import TEXT
from fusetk.training.step import autocast, batch_loss, length_multiple


def saved(
    path: str,
    precision: str,
    overrides: list[str],
    vocabulary: list[int] | None,
    device: torch.device,
) -> tuple[int, int]:
    """Return the target tokens of a batch, and the bytes kept for its gradients."""
    recipe = load(path, overrides)
    data, stage = Path(recipe.data.folder), recipe.training.stages[0]
    corpus, pipeline = Corpus.open(data, "train"), Pipeline.load(data / TEXT)
    model = (
        system.build(
            recipe, *(vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab)))
        )
        .to(device)
        .train()
    )
    order = batches(
        corpus.source.lengths, corpus.target.lengths, stage.batch, recipe.training.seed, 0
    )
    batch = collate(corpus, order[0], length_multiple(device, precision)).to(device)
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor, there: set[int]) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def alive() -> list[torch.Tensor]:
        return [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]

    before = {tensor.untyped_storage().data_ptr() for tensor in alive()}
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: note(tensor, before), lambda tensor: tensor
        ),
        autocast(device, precision),
    ):
        loss = batch_loss(model, batch, recipe.training.label_smoothing)
    for tensor in alive():
        note(tensor, before)
    assert loss.smoothed.requires_grad  # and so alive
    return len(batch.target_index), sum(storages.values())


def main() -> None:
    arguments = options(__doc__).parse_args()
    device = device_of(arguments.device)
    for config in arguments.configs:
        for precision in arguments.precision:
            tokens, size = saved(
                config, precision, arguments.overrides, arguments.vocabulary, device
            )
            print(
                f"{config} {precision}: {size / 2**20:,.0f} MB for {tokens:,} target tokens, "
                f"{size / tokens / 1024:,.1f} KB each"
            )


if __name__ == "__main__":
    main()
