"""The computations of ``recurrence.cpp`` for CUDA: one Triton program for each row.

A program has a row in registers, as a block whose size is the next power of two. In the attention
the block is (heads, features of a head). Sums over rows have a fixed order: each program adds its
own rows, and PyTorch adds the sums of the programs.
"""

import triton
import triton.language as tl

# Integers that differ between steps or batches. Triton would compile a program again for values
# that are 1 or multiples of 16.
VARYING = (
    "start",
    "positions",
    "before",
    "before_positions",
    "state_positions",
    "place",
    "rows",
    "after_rows",
    "parts",
    "weights_start",
    "hypotheses",
    "length",
    "steps",
)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gate(
    x,
    a,
    gain,
    shift,
    g,
    d,
    valid,
    width,
    READS: tl.constexpr,
    NORM: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Return a gate, its normalised argument, and 1 / standard deviation."""
    gate = tl.load(a + g * width + d, valid, 0).to(tl.float32)
    if READS:
        gate += tl.load(x + g * width + d, valid, 0).to(tl.float32)
    scale = gate  # unused without NORM
    normed = gate
    if NORM:
        centred = tl.where(valid, gate - tl.sum(gate) / width, 0)
        scale = 1 / tl.sqrt(tl.sum(centred * centred) / width + EPSILON)
        normed = centred * scale
        gate = normed * tl.load(gain + g * width + d, valid, 0) + tl.load(
            shift + g * width + d, valid, 0
        )
    return tl.sigmoid(gate), normed, scale


@triton.jit(do_not_specialize=VARYING)
def cell(
    x,
    a,
    h,
    out,
    after,
    random_bits,
    bias,
    linear_bias,
    gain,
    shift,
    start,
    positions,
    before,
    before_positions,
    place,
    after_rows,
    width,
    threshold,
    keep_scale,
    KIND: tl.constexpr,
    NORM: tl.constexpr,
    DROP: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the new state of one row of a step.

    ``program_id`` 0 is the row and ``program_id`` 1 is the direction: CUDA allows more than 65,535
    programs in dimension 0 only, and the beams of a search may have more rows.
    """
    GATES: tl.constexpr = 3 if KIND >= 2 else 2
    READS: tl.constexpr = KIND != 1
    i, r = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    valid = d < width
    row = (r * positions + start + i).to(tl.int64)
    x += row * (GATES + 1 + (KIND >= 2)) * width
    a += row * (GATES + 1) * width
    gain += r * GATES * width
    shift += r * GATES * width
    reset, _, _ = _gate(x, a, gain, shift, 0, d, valid, width, READS, NORM, EPSILON)
    update, _, _ = _gate(x, a, gain, shift, 1, d, valid, width, READS, NORM, EPSILON)
    old = tl.load(h + (r * before_positions + before + i).to(tl.int64) * width + d, valid, 0)
    recalled = tl.load(a + GATES * width + d, valid, 0).to(tl.float32) + tl.load(
        bias + r * width + d, valid, 0
    )
    inner = reset * recalled
    if READS:
        read = tl.load(x + GATES * width + d, valid, 0).to(tl.float32)
        inner += (1 - reset) * read if KIND == 3 else read
    candidate = _tanh(inner)
    if KIND >= 2:
        third, _, _ = _gate(x, a, gain, shift, 2, d, valid, width, READS, NORM, EPSILON)
        linear = tl.load(x + (GATES + 1) * width + d, valid, 0).to(tl.float32) + tl.load(
            linear_bias + r * width + d, valid, 0
        )
        if KIND == 2:
            candidate += third * linear
    if DROP:
        candidate *= tl.where(
            tl.load(random_bits + row * width + d, valid, 0) >= threshold, keep_scale, 0.0
        )
    new = old + update * (candidate - old)
    if KIND == 3:
        new += third * (linear - new)
    tl.store(out + row * width + d, new, valid)
    if i < after_rows:
        tl.store(
            after + (r * positions + place + i).to(tl.int64) * width + d,
            new.to(after.dtype.element_ty),
            valid,
        )


@triton.jit
def _through(
    y,
    normed,
    scale,
    gain,
    x_out,
    a_out,
    g,
    d,
    valid,
    width,
    READS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Store the gradients of a gate's two projections, given the gradient ``y`` of its argument."""
    if NORM:
        y *= tl.load(gain + g * width + d, valid, 0)
        y = tl.where(
            valid, scale * (y - tl.sum(y) / width - normed * (tl.sum(y * normed) / width)), 0
        )
    tl.store(a_out + g * width + d, y.to(a_out.dtype.element_ty), valid)
    if READS:
        tl.store(x_out + g * width + d, y.to(x_out.dtype.element_ty), valid)


@triton.jit(do_not_specialize=VARYING)
def cell_backward(
    x,
    a,
    h,
    random_bits,
    bias,
    linear_bias,
    gain,
    shift,
    state,
    product,
    output_grad,
    by_x,
    by_a,
    norms,
    start,
    positions,
    before,
    before_positions,
    state_positions,
    rows,
    width,
    threshold,
    keep_scale,
    parts,
    KIND: tl.constexpr,
    NORM: tl.constexpr,
    DROP: tl.constexpr,
    OUTPUT_GRAD: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradients of some rows of a step.

    ``program_id`` 0 is the direction. With ``program_id`` 1 = i the rows are i, i + ``parts``,
    i + 2 ``parts``, ...
    """
    GATES: tl.constexpr = 3 if KIND >= 2 else 2
    READS: tl.constexpr = KIND != 1
    INPUTS: tl.constexpr = GATES + 1 + (KIND >= 2)
    r, part = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    valid = d < width
    gain += r * GATES * width
    shift += r * GATES * width
    gain0 = tl.zeros((BLOCK,), tl.float32)
    gain1, gain2, shift0, shift1, shift2 = gain0, gain0, gain0, gain0, gain0
    for i in range(part, rows, parts):
        row = (r * positions + start + i).to(tl.int64)
        xs = x + row * INPUTS * width
        a_s = a + row * (GATES + 1) * width
        by_xs = by_x + row * INPUTS * width
        by_as = by_a + row * (GATES + 1) * width
        reset, normed0, scale0 = _gate(
            xs, a_s, gain, shift, 0, d, valid, width, READS, NORM, EPSILON
        )
        update, normed1, scale1 = _gate(
            xs, a_s, gain, shift, 1, d, valid, width, READS, NORM, EPSILON
        )
        old = tl.load(h + (r * before_positions + before + i).to(tl.int64) * width + d, valid, 0)
        recalled = tl.load(a_s + GATES * width + d, valid, 0).to(tl.float32) + tl.load(
            bias + r * width + d, valid, 0
        )
        inner = reset * recalled
        if READS:
            read = tl.load(xs + GATES * width + d, valid, 0).to(tl.float32)
            inner += (1 - reset) * read if KIND == 3 else read
        nonlinear = _tanh(inner)
        candidate = nonlinear
        if KIND >= 2:
            third, normed2, scale2 = _gate(
                xs, a_s, gain, shift, 2, d, valid, width, READS, NORM, EPSILON
            )
            linear = tl.load(xs + (GATES + 1) * width + d, valid, 0).to(tl.float32) + tl.load(
                linear_bias + r * width + d, valid, 0
            )
            if KIND == 2:
                candidate += third * linear
        times = tl.full((BLOCK,), 1.0, tl.float32)
        if DROP:
            times = tl.where(
                tl.load(random_bits + row * width + d, valid, 0) >= threshold, keep_scale, 0.0
            )
        candidate *= times
        at = (r * state_positions + i).to(tl.int64) * width + d
        grad = tl.load(state + at, valid, 0) + tl.load(product + at, valid, 0).to(tl.float32)
        if OUTPUT_GRAD:
            grad += tl.load(output_grad + row * width + d, valid, 0)
        tl.debug_barrier()  # all warps read the state's gradient before one writes it
        if KIND == 3:
            by_third = grad * (linear - old - update * (candidate - old))
            by_linear = grad * third
            grad *= 1 - third
        by_update = grad * (candidate - old)
        by_candidate = grad * update * times
        tl.store(state + at, grad * (1 - update), valid)
        if KIND == 2:
            by_third = by_candidate * linear
            by_linear = by_candidate * third
        by_inner = by_candidate * (1 - nonlinear * nonlinear)
        tl.store(by_as + GATES * width + d, (by_inner * reset).to(by_a.dtype.element_ty), valid)
        by_reset = by_inner * recalled
        if READS:
            by_read = by_inner
            if KIND == 3:
                by_reset -= by_inner * read
                by_read *= 1 - reset
            tl.store(by_xs + GATES * width + d, by_read.to(by_x.dtype.element_ty), valid)
        y0 = by_reset * reset * (1 - reset)
        y1 = by_update * update * (1 - update)
        gain0 += y0 * normed0
        gain1 += y1 * normed1
        shift0 += y0
        shift1 += y1
        _through(y0, normed0, scale0, gain, by_xs, by_as, 0, d, valid, width, READS, NORM)
        _through(y1, normed1, scale1, gain, by_xs, by_as, 1, d, valid, width, READS, NORM)
        if KIND >= 2:
            tl.store(by_xs + (GATES + 1) * width + d, by_linear.to(by_x.dtype.element_ty), valid)
            y2 = by_third * third * (1 - third)
            gain2 += y2 * normed2
            shift2 += y2
            _through(y2, normed2, scale2, gain, by_xs, by_as, 2, d, valid, width, READS, NORM)
    if NORM:
        to = norms + (part * tl.num_programs(0) + r) * 2 * GATES * width + d
        tl.store(to, tl.load(to, valid, 0) + gain0, valid)
        tl.store(to + width, tl.load(to + width, valid, 0) + gain1, valid)
        tl.store(to + GATES * width, tl.load(to + GATES * width, valid, 0) + shift0, valid)
        tl.store(
            to + (GATES + 1) * width, tl.load(to + (GATES + 1) * width, valid, 0) + shift1, valid
        )
        if KIND >= 2:
            tl.store(to + 2 * width, tl.load(to + 2 * width, valid, 0) + gain2, valid)
            tl.store(to + 5 * width, tl.load(to + 5 * width, valid, 0) + shift2, valid)


@triton.jit(do_not_specialize=VARYING)
def attention(
    queries,
    keys,
    values,
    mask,
    vector,
    weights,
    scores,
    contexts,
    start,
    weights_start,
    hypotheses,
    length,
    SOURCES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Compute the scores, the softmax of each source, and the weighted sum of values, for one row.

    ``program_id`` 0 is the row of the step. ``start`` is the first row of the step in ``queries``
    and ``contexts``, and ``weights_start`` that in ``weights``, which may have the rows of one step
    only.
    """
    row = (start + tl.program_id(0)).to(tl.int64)
    weights_row = (weights_start + tl.program_id(0)).to(tl.int64)
    sentence = (tl.program_id(0) // hypotheses).to(tl.int64)
    h, d, e = tl.arange(0, HEADS), tl.arange(0, SIZE), tl.arange(0, VALUE_BLOCK)
    by_key, by_value = h[:, None] * SIZE + d[None, :], h[:, None] * VALUE_SIZE + e[None, :]
    valid = (e < VALUE_SIZE)[None, :] & (h >= 0)[:, None]
    query = tl.load(queries + row * HEADS * SIZE + by_key).to(tl.float32)
    along = tl.load(vector + d)[None, :]
    context = tl.zeros((HEADS, VALUE_BLOCK), tl.float32)
    for source in range(SOURCES):
        most = tl.full((HEADS,), -3e38, tl.float32)
        first = source * length
        source_scores = (
            scores + (tl.program_id(0).to(tl.int64) * SOURCES * length + first) * HEADS + h
        )
        for s in range(length):
            if tl.load(mask + sentence * length + s) != 0:
                key = tl.load(
                    keys + (sentence * SOURCES * length + first + s) * HEADS * SIZE + by_key
                ).to(tl.float32)
                score = tl.sum(along * _tanh(query + key), 1)
                tl.store(source_scores + s * HEADS, score)
                most = tl.maximum(most, score)
        tl.debug_barrier()  # another warp may read the scores that this one wrote
        total = tl.zeros((HEADS,), tl.float32)
        for s in range(length):
            if tl.load(mask + sentence * length + s) != 0:
                total += tl.exp(tl.load(source_scores + s * HEADS) - most)
        for s in range(length):
            weight = tl.zeros((HEADS,), tl.float32)
            if tl.load(mask + sentence * length + s) != 0:
                weight = tl.exp(tl.load(source_scores + s * HEADS) - most) / total
                at = (sentence * SOURCES * length + first + s) * HEADS * VALUE_SIZE
                context += weight[:, None] * tl.load(values + at + by_value, valid, 0).to(
                    tl.float32
                )
            tl.store(weights + (weights_row * SOURCES * length + first + s) * HEADS + h, weight)
    tl.store(
        contexts + row * HEADS * VALUE_SIZE + by_value, context.to(contexts.dtype.element_ty), valid
    )


@triton.jit(do_not_specialize=VARYING)
def attention_backward(
    queries,
    keys,
    values,
    mask,
    vector,
    weights,
    product,
    output_grad,
    grads,
    by_queries,
    by_keys,
    by_vector,
    scores,
    start,
    length,
    SOURCES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    OUTPUT_GRAD: tl.constexpr,
):
    """Compute the gradients of one row of a step.

    ``program_id`` 0 is the row, which is also the sentence.
    """
    sentence = tl.program_id(0).to(tl.int64)
    row = start + sentence
    h, d, e = tl.arange(0, HEADS), tl.arange(0, SIZE), tl.arange(0, VALUE_BLOCK)
    by_key, by_value = h[:, None] * SIZE + d[None, :], h[:, None] * VALUE_SIZE + e[None, :]
    valid = (e < VALUE_SIZE)[None, :] & (h >= 0)[:, None]
    query = tl.load(queries + row * HEADS * SIZE + by_key).to(tl.float32)
    along = tl.load(vector + d)[None, :]
    grad = tl.load(product + sentence * HEADS * VALUE_SIZE + by_value, valid, 0).to(tl.float32)
    if OUTPUT_GRAD:
        grad += tl.load(output_grad + row * HEADS * VALUE_SIZE + by_value, valid, 0)
    tl.store(grads + row * HEADS * VALUE_SIZE + by_value, grad, valid)
    by_query = tl.zeros((HEADS, SIZE), tl.float32)
    to_vector = tl.zeros((SIZE,), tl.float32)
    for source in range(SOURCES):
        mean = tl.zeros((HEADS,), tl.float32)
        for s in range(length):
            slot = source * length + s
            if tl.load(mask + sentence * length + s) != 0:
                at = (sentence * SOURCES * length + slot) * HEADS * VALUE_SIZE
                score = tl.sum(grad * tl.load(values + at + by_value, valid, 0).to(tl.float32), 1)
                tl.store(scores + (sentence * SOURCES * length + slot) * HEADS + h, score)
                mean += score * tl.load(weights + (row * SOURCES * length + slot) * HEADS + h)
        tl.debug_barrier()
        for s in range(length):
            slot = source * length + s
            if tl.load(mask + sentence * length + s) != 0:
                score = tl.load(scores + (sentence * SOURCES * length + slot) * HEADS + h) - mean
                score *= tl.load(weights + (row * SOURCES * length + slot) * HEADS + h)
                at = (sentence * SOURCES * length + slot) * HEADS * SIZE + by_key
                t = _tanh(query + tl.load(keys + at).to(tl.float32))
                inner = score[:, None] * along * (1 - t * t)
                to_vector += tl.sum(score[:, None] * t, 0)
                by_query += inner
                tl.store(by_keys + at, tl.load(by_keys + at) + inner)
    tl.store(by_queries + row * HEADS * SIZE + by_key, by_query.to(by_queries.dtype.element_ty))
    to = by_vector + sentence * SIZE + d
    tl.store(to, tl.load(to) + to_vector)


@triton.jit(do_not_specialize=VARYING)
def values_backward(
    weights,
    grads,
    starts,
    sizes,
    by_values,
    steps,
    HEADS: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Sum the gradient of the values of one source position over all steps.

    ``program_id`` 0 is the sentence, and ``program_id`` 1 is the position among all sources.
    """
    sentence, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slots = tl.num_programs(1)
    h, e = tl.arange(0, HEADS), tl.arange(0, VALUE_BLOCK)
    by_value = h[:, None] * VALUE_SIZE + e[None, :]
    valid = (e < VALUE_SIZE)[None, :] & (h >= 0)[:, None]
    grad = tl.zeros((HEADS, VALUE_BLOCK), tl.float32)
    for t in range(steps):
        if sentence < tl.load(sizes + t):
            row = tl.load(starts + t) + sentence
            weight = tl.load(weights + (row * slots + slot) * HEADS + h)
            grad += weight[:, None] * tl.load(grads + row * HEADS * VALUE_SIZE + by_value, valid, 0)
    tl.store(
        by_values + (sentence * slots + slot) * HEADS * VALUE_SIZE + by_value,
        grad.to(by_values.dtype.element_ty),
        valid,
    )
