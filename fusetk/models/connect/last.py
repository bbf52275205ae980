"""The usual connection of layers."""

from typing import Any

from fusetk.models.connect.base import Connection


class LastConnection(Connection):
    """The usual connection: a layer reads the output of the layer below it.

    With some kinds of `residual`, the output is a stream of several states.
    """

    def register_output(self, width: int, starts_block: bool) -> None:
        self.width = width

    def register_input(self) -> int:
        return self.width

    def append(self, outputs: Any, output: Any, layer_input: Any = None) -> Any:
        return output

    def forward(self, outputs: Any) -> Any:
        return outputs
