"""Connections: how a layer's input is made from the outputs of the layers below it.

To add a connection, write its file and add it to ``CONNECTIONS``. A class outside fusetk is named
in the config as ``package.module:Name``.
"""

from fusetk.config import resolve
from fusetk.models.connect.base import (
    ConnectConfig,
    Connection,
    LayerInputs,
    PlannedModule,
)
from fusetk.models.connect.cross import CrossConnection
from fusetk.models.connect.dense import DenseConnection, DenseConnectionConfig
from fusetk.models.connect.depth_weighted import DepthWeightedConnection
from fusetk.models.connect.last import LastConnection
from fusetk.models.connect.linear import LinearConnection
from fusetk.models.connect.mudd import MuddConnection

__all__ = [
    "CONNECTIONS",
    "ConnectConfig",
    "Connection",
    "DenseConnectionConfig",
    "LayerInputs",
    "PlannedModule",
    "build_connection",
]

CONNECTIONS: dict[str, type[Connection]] = {
    "last": LastConnection,
    "linear": LinearConnection,
    "dense": DenseConnection,
    "depth-weighted": DepthWeightedConnection,
    "mudd": MuddConnection,
    "cross": CrossConnection,
}


def build_connection(config: ConnectConfig, name: str) -> Connection:
    """Build the connection that ``config.kind`` names.

    Raises ValueError if no class has this name.
    """
    return resolve(config.kind, CONNECTIONS, Connection)(config, name)
