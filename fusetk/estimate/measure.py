"""The speed of training on this machine, from a few updates."""

import time
from statistics import median

import torch

from fusetk import system
from fusetk.estimate.cost import TextLengths, batches_in_update, sample_batches
from fusetk.estimate.operations import batch_cost
from fusetk.machine import computing
from fusetk.recipe import Recipe
from fusetk.training import optim
from fusetk.training.cuda_graphs import CudaGraphs, check_recordable
from fusetk.training.update import accumulate_gradients, length_multiple, optimizer_step

WARM_UP = 3  # updates that are not timed; the allocator reserves memory in them


def measured_speed(
    recipe: Recipe, sizes: tuple[int, int], text: TextLengths, device: torch.device, updates: int
) -> float:
    """Return the multiply-adds a second in updates of the first stage, with random weights.

    It is computed from the median times of ``updates`` batches and of as many steps of the
    optimiser. The batches have the lengths of the text, but all tokens are EOS. Raises RuntimeError
    if the memory is too small, and ConfigError if ``training.cuda_graphs`` cannot record the model.
    """
    stage = recipe.training.stages[0]
    smoothing = recipe.training.label_smoothing
    shapes, count = sample_batches(stage.batch, text, recipe.training.seed, stage.weights)
    counted = system.build_shapes(recipe, *sizes).train()
    # Counting between the updates would slow them down.
    operations = [batch_cost(counted, shape, smoothing).multiply_adds for shape in shapes]
    model = system.build(recipe, *sizes).to(device).train()
    if recipe.training.cuda_graphs:
        check_recordable(model)
    graphs = CudaGraphs.of(model, recipe.training)
    optimizer = optim.build(stage.optimizer, model.parameters())
    seconds, steps = [], []  # seconds for a multiply-add, and for a step of the optimiser
    with computing(device, recipe.training.matmul, precision=recipe.training.precision):
        multiple = length_multiple(device, recipe.training.precision, graphs is not None)
        for number in range(updates + WARM_UP):
            shape = shapes[number % len(shapes)]
            tokens = shape.target_tokens
            batch = shape.batch(multiple, model.max_positions)
            if graphs:
                for _ in range(2):  # the second call records the batch
                    graphs.add_gradients(batch, 0.0)
            start = _now(device)
            if graphs:
                losses = [graphs.add_gradients(batch, 1 / tokens)]
            else:
                losses = accumulate_gradients(
                    model, [batch.to(device)], smoothing, recipe.training.precision, tokens
                )
            end_of_batch = _now(device)
            optimizer_step(
                *(model, optimizer, losses, 0.0, stage.clip),
                keep_gradients=graphs is not None,
            )
            seconds.append((end_of_batch - start) / operations[number % len(shapes)])
            steps.append(_now(device) - end_of_batch)
    in_update = batches_in_update(stage.batch.accumulate, count)
    operations_of_update = in_update * sum(operations) / len(shapes)
    time_of_step = median(steps[WARM_UP:])
    return 1 / (median(seconds[WARM_UP:]) + time_of_step / operations_of_update)


def _now(device: torch.device) -> float:
    """Return the time in seconds after all operations on the device have ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
