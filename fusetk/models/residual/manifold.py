"""Manifold-constrained hyper-connections (mHC, Xie et al. 2025; mHC-lite, Yang and Gao 2026)."""

from itertools import permutations
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.models.residual.base import (
    Norm,
    ResidualConfig,
    SubLayer,
    require_norm,
)
from fusetk.models.residual.hyper import CopiedStreams, MixedStreams
from fusetk.nn.fused import streams as fused_streams
from fusetk.nn.norm import RMS_EPSILON, inverse_rms
from fusetk.nn.precision import without_autocast

MOST_PERMUTED_STREAMS = 6  # 720 permutations


class ManifoldConfig(ResidualConfig):
    """Several residual streams, mixed by doubly stochastic matrices."""

    kind: str = "manifold-hyper"
    streams: int = Field(4, ge=2)
    """Number of streams."""
    mix: Literal["sinkhorn", "permutations"] = "sinkhorn"
    """How the matrices that mix the streams become doubly stochastic: by Sinkhorn's normalisation
    (mHC), or as weighted means of all permutation matrices (mHC-lite)."""
    iterations: int = Field(20, ge=1, le=1000)
    """Iterations of Sinkhorn's normalisation. They have no effect with `mix: permutations`."""

    def check(self, norm: Norm, layers: int) -> None:
        require_norm(self, norm, "pre", "its streams are not normalised between sub-layers")
        if self.mix == "permutations":
            if self.iterations != type(self).model_fields["iterations"].default:
                raise ValueError(
                    "residual.iterations has no effect with mix: permutations: remove it"
                )
            if self.streams > MOST_PERMUTED_STREAMS:
                raise ValueError(
                    f"residual.streams: {self.streams} streams have too many permutations: give at "
                    f"most {MOST_PERMUTED_STREAMS}, or mix: sinkhorn"
                )


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


def permutation_matrices(n: int) -> Tensor:
    """Return all permutation matrices of n elements (n!, n, n). The first one is the identity."""
    return torch.stack([torch.eye(n)[list(order)] for order in permutations(range(n))])


def mean_of_permutations(logits: Tensor, matrices: Tensor) -> Tensor:
    """Return the mean of ``matrices`` (m, n, n), weighted by the softmax of logits (..., m).

    If these are permutation matrices, the mean (..., n, n) is doubly stochastic. It is computed in
    float32 even with autocast.
    """
    with without_autocast(logits):
        logits = logits.float() if logits.dtype != torch.float64 else logits
        mean = logits.softmax(-1) @ matrices.flatten(1).to(logits)
        return mean.unflatten(-1, matrices.shape[1:])


class ManifoldResidual(MixedStreams):
    """Manifold-constrained hyper-connections with n streams x (..., n, D) (mHC, section 4).

    The sub-layer F reads H_pre x, and its output changes the streams to H_res x + H_post^T F(H_pre
    x). With v = RMSNorm of all n D features,

        H_pre = sigmoid(a_pre v W_pre + b_pre),  H_post = 2 sigmoid(a_post v W_post + b_post),
        H_res = sinkhorn(a_res mat(v W_res) + b_res).

    With ``mix: permutations`` (mHC-lite), W_res has n! columns, and with the permutation matrices P

        H_res = sum_i softmax_i(a_res v W_res + b_res) P_i.

    The scalars a are 0.01 at first. The paper gives no initial values of W and b, and no readout.
    We choose W = 0, b_post = 0, b_res = 10 times the identity (``permutations``: 10 for the
    identity, 0 for the others), and b_pre such that sub-layer k reads stream k mod n with weight
    0.7 and the others with weights that sum to 0.3; the readout is the mean. A new model then
    computes the function of the plain pre-norm model up to rounding, and the streams differ after
    the first update. With equal weights b_pre they would be equal for ever.
    """

    Config = ManifoldConfig
    Ends = ManifoldEnds
    permutations: Tensor | None

    def __init__(self, config: ManifoldConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        n = config.streams
        self.streams = n
        self.iterations = config.iterations
        matrices = permutation_matrices(n) if config.mix == "permutations" else None
        self.register_buffer("permutations", matrices, persistent=False)
        mix = torch.eye(n).flatten()
        if matrices is not None:
            mix = F.one_hot(torch.tensor(0), len(matrices)).float()
        # The columns of the projection and of the bias: n of H_pre, n of H_post, the rest of H_res.
        self.sizes = (n, n, len(mix))
        read = torch.full((n,), 0.3 / (n - 1))
        read[sublayer.below % n] = 0.7
        self.bias = nn.Parameter(torch.cat((read.logit(), torch.zeros(n), 10 * mix)))
        self.project = nn.Parameter(torch.zeros(n * sublayer.width, len(self.bias)))
        self.scale = nn.Parameter(torch.full((3,), 0.01))

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return H_pre (..., n), H_post (..., n) and H_res (..., n, n) for (..., n, D)."""
        flat = streams.flatten(-2)
        scores = self._products(flat)
        pre, post, res = (
            scale * part + bias
            for scale, part, bias in zip(
                self.scale, scores.split(self.sizes, -1), self.bias.split(self.sizes), strict=True
            )
        )
        return pre.sigmoid(), 2 * post.sigmoid(), self._mix(res)

    def _mix(self, logits: Tensor) -> Tensor:
        """Return H_res (..., n, n) for its logits (..., n * n or n!)."""
        if self.permutations is not None:
            return mean_of_permutations(logits, self.permutations)
        return sinkhorn(logits.unflatten(-1, (self.streams, self.streams)), self.iterations)

    def _products(self, flat: Tensor) -> Tensor:
        """Return RMSNorm(v) W without keeping RMSNorm(v) for the backward pass."""
        if fused_streams.usable(flat, self.project):
            return fused_streams.normed_products(flat, self.project, RMS_EPSILON, centred=False)
        return (flat @ self.project) * inverse_rms(flat)
