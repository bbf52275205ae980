"""What a stack of layers hands on: one idea a file. To add one, write its file and name it here."""

from fusetk.fusion.attention import Attention
from fusetk.fusion.average import Average
from fusetk.fusion.base import Fusion
from fusetk.fusion.ffn import FFN
from fusetk.fusion.iterative import Iterative
from fusetk.fusion.last import Last
from fusetk.fusion.linear import Linear
from fusetk.fusion.tree import Tree

FUSIONS: dict[str, type[Fusion]] = {
    "last": Last,
    "average": Average,
    "ffn": FFN,
    "attention": Attention,
    "linear": Linear,
    "iterative": Iterative,
    "tree": Tree,
}
