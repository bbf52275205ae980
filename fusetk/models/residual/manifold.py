"""Manifold-constrained hyper-connections (mHC, Xie et al. 2025)."""

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk.models.residual.base import (
    Norm,
    ResidualConfig,
    SubLayer,
    require_norm,
)
from fusetk.models.residual.hyper import CopiedStreams, MixedStreams
from fusetk.nn.fused import streams as fused_streams
from fusetk.nn.norm import RMS_EPSILON, inverse_rms


class ManifoldConfig(ResidualConfig):
    """Several residual streams, mixed by doubly stochastic matrices."""

    kind: str = "manifold-hyper"
    streams: int = Field(4, ge=2)
    """Number of streams."""
    iterations: int = Field(20, ge=1, le=1000)
    """Iterations of Sinkhorn's normalisation."""

    def check(self, norm: Norm, layers: int) -> None:
        require_norm(self, norm, "pre", "its streams are not normalised between sub-layers")


class ManifoldEnds(CopiedStreams):
    """Copies of the input at the bottom, and the mean of the streams at the top."""

    def state(self, stream: Tensor) -> Tensor:
        return stream.mean(-2)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Return a nearly doubly stochastic matrix for each matrix of logits (..., n, n).

    An iteration normalises the columns of exp(logits) and then its rows, so that rows sum to 1
    (Equation 9). It uses logarithms, and float32 even with autocast.
    """
    logits = logits.float() if logits.dtype != torch.float64 else logits
    if fused_streams.sinkhorn_is_usable(logits):
        return fused_streams.sinkhorn(logits, iterations)
    for _ in range(iterations):
        logits = logits.log_softmax(-2).log_softmax(-1)
    return logits.exp()


class ManifoldResidual(MixedStreams):
    """Manifold-constrained hyper-connections with n streams x (..., n, D) (mHC, section 4).

    The sub-layer F reads H_pre x, and its output changes the streams to H_res x + H_post^T F(H_pre
    x). With v = RMSNorm of all n D features,

        H_pre = sigmoid(a_pre v W_pre + b_pre),  H_post = 2 sigmoid(a_post v W_post + b_post),
        H_res = sinkhorn(a_res mat(v W_res) + b_res).

    The scalars a are 0.01 at first. The paper gives no initial values of W and b, and no readout.
    We choose W = 0, b_post = 0, b_res = 10 times the identity, and b_pre such that sub-layer k
    reads stream k mod n with weight 0.7 and the others with weights that sum to 0.3; the readout is
    the mean. A new model then computes the function of the plain pre-norm model up to rounding, and
    the streams differ after the first update. With equal weights b_pre they would be equal for
    ever.
    """

    Config = ManifoldConfig
    Ends = ManifoldEnds

    def __init__(self, config: ManifoldConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        n = config.streams
        self.streams = n
        self.iterations = config.iterations
        # The columns of the projection and of the bias: n of H_pre, n of H_post, n * n of H_res.
        self.project = nn.Parameter(torch.zeros(n * sublayer.width, n * (n + 2)))
        self.bias = nn.Parameter(self._initial_bias(n, sublayer.below % n))
        self.scale = nn.Parameter(torch.full((3,), 0.01))

    @staticmethod
    def _initial_bias(n: int, nearest: int) -> Tensor:
        read = torch.full((n,), 0.3 / (n - 1))
        read[nearest] = 0.7
        return torch.cat((read.logit(), torch.zeros(n), 10 * torch.eye(n).flatten()))

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return H_pre (..., n), H_post (..., n) and H_res (..., n, n) for (..., n, D)."""
        n = self.streams
        sizes = (n, n, n * n)
        flat = streams.flatten(-2)
        scores = self._products(flat)
        pre, post, res = (
            scale * part + bias
            for scale, part, bias in zip(
                self.scale, scores.split(sizes, -1), self.bias.split(sizes), strict=True
            )
        )
        mix = sinkhorn(res.unflatten(-1, (n, n)), self.iterations)
        return pre.sigmoid(), 2 * post.sigmoid(), mix

    def _products(self, flat: Tensor) -> Tensor:
        """Return RMSNorm(v) W without keeping RMSNorm(v) for the backward pass."""
        if fused_streams.usable(flat, self.project):
            return fused_streams.normed_products(flat, self.project, RMS_EPSILON, centred=False)
        return (flat @ self.project) * inverse_rms(flat)
