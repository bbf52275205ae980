"""What a stack of layers hands on: one idea a file. To add one, write its file and name it here."""

from fusetk.fusion.base import Fusion
from fusetk.fusion.last import Last

FUSIONS: dict[str, type[Fusion]] = {
    "last": Last,
}
