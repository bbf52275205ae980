"""The weights with which layers and sub-layers read the outputs below them.

A *reading* is a layer, a sub-layer, or the output of a stack. Its weights are learned numbers, or
they are computed at each position. The weights of ``residual`` with streams are expanded: the
weight of a sub-layer's output in a reading is the sum over all paths through the streams. If a
connection makes the input of each layer, the streams are expanded within each layer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from fusetk.decoding.target_scores import IdPair
from fusetk.errors import DataError, Diverged, class_name, quantity
from fusetk.evaluation.forward_trace import UNKNOWN_WORDS, ForwardTrace, trace_forward
from fusetk.evaluation.layer_shares import layer_names
from fusetk.models.connect import CONNECTIONS, Connection
from fusetk.models.connect.last import LastConnection
from fusetk.models.residual import RESIDUALS, Residual
from fusetk.models.residual.separate import SeparateResidual
from fusetk.models.stack import Stack, stacks_of
from fusetk.nn.shape_check import is_outside
from fusetk.trace import MODEL_SIDES

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

# The inputs of a layer with separate inputs, by the end of the trace name.
_INPUTS = {"query": "queries", "key": "keys", "value": "values", "residual": "residual stream"}
_LAYER = re.compile(r"(encoder|decoder)\.(connect|attend)\.layer(\d+)(?:\.(\w+))?")
_SUBLAYER = re.compile(
    r"(encoder|decoder)\.residual\.(sublayer(\d+)|output)(\.(?:sources|read|write|mix))?"
)
# The sub-layers of a layer with two and with three sub-layers.
_SUBLAYERS = {2: ("self", "ffn"), 3: ("self", "cross", "ffn")}


class Readings(NamedTuple):
    """The weights of all readings of one site for B sentences."""

    name: str
    title: str
    side: str  # whose positions the weights belong to
    # (R, C), or (B, T, R, C) if they depend on the position; NaN: the output cannot be read.
    weights: np.ndarray
    rows: list[str]
    columns: list[str]
    reader: str  # the kind of a row
    read_layers: str  # the weighted values, for the title of a row
    lengths: np.ndarray  # (B,) positions of each sentence

    @property
    def by_position(self) -> bool:
        """Whether the weights depend on the position."""
        return self.weights.ndim == 4

    def of_sentence(self, i: int) -> np.ndarray:
        """Return the weights at the positions of sentence i: (T, R, C)."""
        return self.weights[i, : self.lengths[i]]

    def row_title(self, row: str) -> str:
        """Return the title of a panel of one row."""
        reader = f"sub-layer {row}"
        if row == "top":
            reader = "output of the stack"
        elif re.fullmatch(r"l\d+", row):
            reader = f"layer {row[1:]}"
        return f"{self.side}, {reader}, weights of {self.read_layers}"


def trace_readings(
    model: "Seq2Seq", pairs: Sequence[IdPair], sides: Sequence[str] = MODEL_SIDES
) -> list[Readings]:
    """Return the readings of all sites of ``sides``, by forced decoding of ``pairs``.

    Raises DataError if no connection has weights, or if recorded weights have a wrong shape, and
    Diverged if weights are NaN.
    """
    # The pattern matches connect, attend and residual, but not attention, whose weights are costly.
    traced = trace_forward(model, pairs, "*coder.[acr]*")
    stacks = {stack.name: stack for stack in stacks_of(model)}
    readings = _layer_readings(traced, stacks)
    for side in MODEL_SIDES:
        readings += _sublayer_readings(traced, side, stacks.get(side))
    readings = [reading for reading in readings if reading.side in sides]
    if not readings:
        raise DataError(f"there are no connections to draw: {_no_weights(model, sides)}")
    return readings


class _Connection(NamedTuple):
    """A connection, or the residual connections of a stack, that are not the usual ones."""

    place: str  # such as decoder.connect
    kind: str
    is_from_outside: bool


def _connections(model: "Seq2Seq", sides: Sequence[str]) -> list[_Connection]:
    """Return the connections and the residual connections of ``sides``, without the usual ones."""
    connections: dict[_Connection, None] = {}
    for module in model.modules():
        for base, known in ((Connection, CONNECTIONS), (Residual, RESIDUALS)):
            if isinstance(module, base) and not isinstance(module, SeparateResidual):
                kinds = [kind for kind, cls in known.items() if cls is type(module)]
                kind = kinds[0] if kinds else class_name(module)
                place = ".".join(module.name.split(".")[:2])
                on_other_side = place.partition(".")[0] in set(MODEL_SIDES) - set(sides)
                if kind not in ("last", "plain") and not on_other_side:
                    connections[_Connection(place, kind, is_outside(module))] = None
    return list(connections)


def _advice(connections: Sequence[_Connection]) -> str:
    if any(connection.is_from_outside for connection in connections):
        return "; record them with trace.record, by the names in docs/extending.md"
    return ""


def _no_weights(model: "Seq2Seq", sides: Sequence[str]) -> str:
    """Return the reason why a model has no weights of connections on ``sides``."""
    others = _connections(model, sides)
    if others:
        names = dict.fromkeys(f"{each.place.partition('.')[2]}: {each.kind}" for each in others)
        verb = "has" if len(names) == 1 else "have"
        return f"{' and '.join(names)} {verb} no weights to draw{_advice(others)}"
    where = "this model" if len(sides) > 1 else f"the {sides[0]}"
    return f"every layer of {where} reads the layer below it (connect: last, residual: plain)"


def undrawn(model: "Seq2Seq", sides: Sequence[str] = MODEL_SIDES) -> list[str]:
    """Return a message for each connection of ``sides`` that recorded no weights.

    Raises the errors of ``trace_readings``.
    """
    readings = trace_readings(model, [UNKNOWN_WORDS], sides)
    drawn = {".".join(reading.name.split(".")[:2]) for reading in readings}
    connections = _connections(model, sides)
    # `value-residual` records weights of `connect`. Its stack has no connection with weights.
    without_connection = drawn - {each.place for each in connections}
    drawn |= {place.replace(".connect", ".residual") for place in without_connection}
    return [
        f"{each.place} ({each.kind}) is not drawn: it recorded no weights{_advice([each])}"
        for each in connections
        if each.place not in drawn
    ]


def _layer_readings(traced: ForwardTrace, stacks: dict[str, Stack]) -> list[Readings]:
    """Return the readings of ``connect`` and of ``attend``."""
    readings = []
    for (side, site, layer_input), weights in _layer_weights(traced).items():
        stack = stacks.get(side)
        depth = None if stack is None else len(stack.layers)
        rows = [f"l{i}" if depth is None or i <= depth else "top" for i in weights]
        count = max(values.shape[-1] for values in weights.values())
        columns = [f"l{i}" for i in range(count)]
        title = f"{side}, weights of each layer's {layer_input or 'input'}"
        reader = "layer that reads"
        read_layers = f"the {_INPUTS.get(layer_input, 'input')}"
        if site == "attend":
            if "encoder" in stacks:
                columns = layer_names(count, stacks["encoder"].depth)
            title = "decoder, weights of the encoder layers"
            reader = "layer that attends"
            read_layers = "the encoder layers"
        readings.append(
            Readings(
                ".".join(filter(None, (side, site, layer_input))),
                title,
                side,
                _rows(list(weights.values()), len(columns)),
                rows,
                columns,
                reader,
                read_layers,
                traced.lengths[side],
            )
        )
    return readings


def _layer_weights(traced: ForwardTrace) -> dict[tuple[str, str, str], dict[int, np.ndarray]]:
    """Return the recorded weights of ``connect`` and ``attend``: those of each layer by number.

    A key has the side, the site, and the name of the input if a layer has several. Raises DataError
    if weights have a wrong shape, or if a layer has more weights than outputs below it.
    """
    recorded: dict[tuple[str, str, str], dict[int, np.ndarray]] = {}
    for name, values in traced.recorded.items():
        if match := _LAYER.fullmatch(name):
            side, site, layer, layer_input = match.groups(default="")
            number, weights = int(layer), _checked_weights(name, values)
            if site == "connect" and weights.shape[-1] > number:
                raise DataError(
                    f"{name} was recorded with {weights.shape[-1]} weights, but layer {number} "
                    f"reads at most {number} outputs: correct the call of trace.record"
                )
            recorded.setdefault((side, site, layer_input), {})[number] = weights
    return {key: dict(sorted(weights.items())) for key, weights in recorded.items()}


def _sublayer_readings(traced: ForwardTrace, side: str, stack: Stack | None) -> list[Readings]:
    """Return the readings of the residual connections of one side, or none."""
    by_sublayer: dict[int, dict[str, np.ndarray]] = {}
    for name, values in traced.recorded.items():
        match = _SUBLAYER.fullmatch(name)
        if match and match[1] == side:
            kinds = by_sublayer.setdefault(int(match[3] or 0), {})
            kind = (match[4] or ".sources")[1:]
            is_sources = kind == "sources"
            kinds[kind] = _checked_weights(name, values) if is_sources else _checked_array(values)
    if not by_sublayer:
        return []
    _check_sources(side, by_sublayer)
    output = by_sublayer.pop(0, None)
    sublayers = [by_sublayer[k] for k in sorted(by_sublayer)]
    for k, kinds in sorted(by_sublayer.items()):
        _check_shapes(f"{side}.residual.sublayer{k}", kinds, sublayers[0])
    names = _sublayer_names(len(sublayers), stack)
    columns = ["l0", *names]
    if "sources" in sublayers[0]:
        weights = [kinds["sources"] for kinds in sublayers]
        if output is not None:
            weights.append(output["sources"])
        sources = max(values.shape[-1] for values in weights)
        if any(values.shape[-1] != k for k, values in enumerate(weights, 1)):  # sums of blocks
            columns = ["l0", *(f"b{i}" for i in range(1, sources))]
        columns = columns[:sources]
    elif stack is None or isinstance(stack.connect, LastConnection):
        weights = expand_streams(sublayers)
        if stack is not None and not stack.uses_top_input:
            weights.pop()  # a fusion computes the output of the stack
    elif len(sublayers) % stack.depth:
        return []
    else:
        size = len(sublayers) // stack.depth
        weights = _expand_layers(sublayers, size)
        columns = ["input", *(name.partition(".")[2] for name in names[:size])]
    rows = [*names, "top"][: len(weights)]
    reading = Readings(
        f"{side}.residual",
        f"{side}, weights of each sub-layer's input",
        side,
        _rows(weights, len(columns)),
        rows,
        columns,
        "sub-layer that reads",
        "the input",
        traced.lengths[side],
    )
    return [reading]


def _expand_layers(sublayers: Sequence[dict[str, np.ndarray]], size: int) -> list[np.ndarray]:
    """Return the weights of ``expand_streams`` for each layer of ``size`` sub-layers.

    A connection makes the input of each layer, where its stream begins. The means of the streams
    above the layers are left out.
    """
    return [
        weights
        for start in range(0, len(sublayers), size)
        for weights in expand_streams(sublayers[start : start + size])[:-1]
    ]


def _sublayer_names(count: int, stack: Stack | None) -> list[str]:
    depth = 0 if stack is None else stack.depth
    names = _SUBLAYERS.get(count // depth if depth else 0)
    if names is None or count % depth:
        return [f"s{k}" for k in range(1, count + 1)]
    return [f"l{i}.{name}" for i in range(1, depth + 1) for name in names]


def _check_sources(side: str, by_sublayer: Mapping[int, Mapping[str, np.ndarray]]) -> None:
    """Raise DataError if only some sub-layers have a record of their sources, or none any record.

    The key 0 is that of the output of the stack.
    """
    if by_sublayer.keys() == {0}:
        raise DataError(
            f"{side}.residual.output was recorded, but no sub-layer was: record the sources in the "
            "residual connection of every sub-layer"
        )
    recorded: list[str] = []
    missing: list[str] = []
    for k, kinds in by_sublayer.items():
        name = f"{side}.residual.sublayer{k}" if k else f"{side}.residual.output"
        (recorded if "sources" in kinds else missing).append(name)
    if recorded and missing:
        raise DataError(
            f"{missing[0]} has no record of its sources, but {recorded[0]} has one: record the "
            "sources in the residual connection of every sub-layer"
        )


def _check_shapes(
    name: str, kinds: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]
) -> None:
    """Raise DataError if a record has another shape than ``expand_streams`` needs.

    ``kinds`` are the records of a sub-layer, and ``first`` those of the lowest one, which
    determine the number of streams.
    """
    write = first.get("write", np.ones(1))
    n = write.shape[-1] if write.ndim else 1
    for kind, shape in (("read", (n,)), ("write", (n,)), ("mix", (n, n))):
        values = kinds.get(kind)
        if values is None or (n == 1 and not values.ndim):
            continue
        by_position = values.ndim == 2 + len(shape)
        if values.shape[2 * by_position :] != shape:
            rest = ", ".join(map(str, shape))
            raise DataError(
                f"the record {name}.{kind} has the shape {values.shape}, but "
                f"{quantity(n, 'stream')} need ({rest}) or (B, T, {rest}): change the tensor "
                "that the residual connection records"
            )


def expand_streams(sublayers: Sequence[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Return the weights of the outputs below in each sub-layer's input, and in the mean stream.

    Each stream is the embedding at first, as in ``CopiedStreams``.
    Each sub-layer has the weights ``write`` of its output in the n streams (..., n), and perhaps
    ``read`` (..., n), the weights with which it reads them, and ``mix`` (..., n new, n old). A
    single stream may have numbers instead. The result of sub-layer k has the shape (..., k + 1):
    the weights of the embedding and of the k outputs below it.
    """
    weights = []
    streams: np.ndarray | None = None  # (..., n, outputs so far)
    for kinds in sublayers:
        write = kinds.get("write", np.ones(1))
        write = write if write.ndim else write[None]
        n = write.shape[-1]
        read = kinds.get("read", np.ones(n))
        mix = kinds.get("mix", np.eye(n))
        mix = mix if mix.ndim else mix[None, None]
        if streams is None:
            streams = np.ones((n, 1))
        weights.append((read[..., None, :] @ streams)[..., 0, :])
        mixed = mix @ streams
        shape = np.broadcast_shapes(mixed.shape[:-1], write.shape)
        mixed = np.broadcast_to(mixed, (*shape, mixed.shape[-1]))
        streams = np.concatenate((mixed, np.broadcast_to(write, shape)[..., None]), -1)
    assert streams is not None
    return [*weights, streams.mean(-2)]


def _checked_weights(name: str, values: Tensor) -> np.ndarray:
    """Return the recorded weights of n outputs, (n,) or (B, T, n), as an array.

    Raises DataError if they have another number of dimensions.
    """
    if values.ndim not in (1, 3):
        raise DataError(
            f"{name} was recorded with the shape {tuple(values.shape)}; it must be (n,) or "
            "(B, T, n), the weights of n outputs: correct the call of trace.record"
        )
    return _checked_array(values)


def _checked_array(values: Tensor) -> np.ndarray:
    """Return recorded weights as an array. Raises Diverged if they are NaN."""
    # Positions after the end of a sentence are undefined, so only the first position is checked.
    if (values[:, 0] if values.ndim > 2 else values).isnan().any():
        raise Diverged("weights of connections")
    array: np.ndarray = values.float().cpu().numpy()
    return array


def _rows(weights: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Return weights (C_r) or (B, T, C_r) as (R, C) or (B, T, R, C), with NaN where C_r < C."""
    leading = np.broadcast_shapes(*(values.shape[:-1] for values in weights))
    matrix = np.full((*leading, len(weights), columns), np.nan, dtype=np.float32)
    for row, values in enumerate(weights):
        matrix[..., row, : values.shape[-1]] = values
    return matrix


def needs_text(model: "Seq2Seq", sides: Sequence[str] = MODEL_SIDES) -> bool:
    """Whether weights of ``sides`` depend on the position, so that a text is needed.

    Raises the errors of ``trace_readings``.
    """
    return any(reading.by_position for reading in trace_readings(model, [UNKNOWN_WORDS], sides))


def position_readers(model: "Seq2Seq") -> list[str]:
    """Return the names of the readings that ``position_panels`` draws, in the order of its numbers.

    If several sites have a reading of the same number and other names, all names are given. The
    list is empty if no weights depend on the position. Raises the errors of ``trace_readings``.
    """
    readings = trace_readings(model, [UNKNOWN_WORDS])
    rows = [reading.rows for reading in readings if reading.by_position]
    most = max(map(len, rows), default=0)
    names = [dict.fromkeys(row[i] for row in rows if i < len(row)) for i in range(most)]
    return [" / ".join(alternatives) for alternatives in names]
