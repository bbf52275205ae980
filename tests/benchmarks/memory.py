"""Measure the memory that a training batch keeps for its gradients.

    python tests/benchmarks/memory.py CONFIG [CONFIG ...]

The data of each config must be prepared. The script counts each storage that exists after the
forward pass of the first batch and did not exist before. It does not matter whether autograd or
one of fusetk's own backward passes needs the storage. The result does not depend on
the speed of the machine.
"""

import gc
from pathlib import Path

import torch

from turns import options  # isort: skip

from fusetk import system
from fusetk.data.batch import Batch, collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import batches
from fusetk.machine import computing, device_of
from fusetk.models import Seq2Seq
from fusetk.recipe import load
from fusetk.runs import TEXT
from fusetk.training.update import autocast, batch_loss, length_multiple


def saved(
    path: str,
    precision: str,
    overrides: list[str],
    vocabulary: list[int] | None,
    device: torch.device,
) -> tuple[int, int]:
    """Return the target tokens of a batch, and the bytes kept for its gradients."""
    recipe = load(path, overrides)
    data = Path(recipe.data.folder)
    stage = recipe.training.stages[0]
    corpus = Corpus.open(data, "train")
    pipeline = Pipeline.load(data / TEXT)
    sizes = vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    model = system.build(recipe, *sizes).to(device).train()
    order = batches(
        corpus.source.lengths, corpus.target.lengths, stage.batch, recipe.training.seed, 0
    )
    with computing(device, recipe.training.matmul, precision=precision):
        batch = collate(corpus, order[0], length_multiple(device, precision)).to(device)
        size = kept_bytes(model, batch, recipe.training.label_smoothing, precision)
    return len(batch.target_index), size


def kept_bytes(model: Seq2Seq, batch: Batch, smoothing: float, precision: str = "fp32") -> int:
    """Return the bytes that a batch keeps for its gradients. Both are on one device."""
    storages: dict[int, int] = {}

    def record(tensor: torch.Tensor, known: set[int]) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def alive() -> list[torch.Tensor]:
        kinds = (torch.Tensor, torch.nn.Parameter)  # those of other classes may have no storage
        return [value for value in gc.get_objects() if type(value) in kinds]

    before = {tensor.untyped_storage().data_ptr() for tensor in alive()}
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: record(tensor, before), lambda tensor: tensor
        ),
        autocast(batch.src.device, precision),
    ):
        loss = batch_loss(model, batch, smoothing)
    for tensor in alive():
        record(tensor, before)
    assert loss.smoothed.requires_grad  # so the graph is still alive
    return sum(storages.values())


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
