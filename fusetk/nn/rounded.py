"""Linear maps with rounded weights and inputs, for inference on CPU."""

from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.fused import decoding as kernels

ALL = slice(None)
# Whether new maps to bf16 use the kernels of fusetk; fusetk.machine measures it.
in_kernels = {"maps": False, "projection": False}


class RoundedLinear(nn.Module):
    """x W^T + b with rounded W and x: (..., width) -> (..., out), float32."""

    weight: Tensor
    """(out, width), rounded."""
    bias: Tensor | None
    """(out,), float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` is already rounded; ``bias`` (out,) is that of the map to replace."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, x.shape[-1]), self.bias)
        return out.view(*x.shape[:-1], -1)

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        """Return x W^T + ``bias`` for x (R, width); with ``relu``, negative results become 0.

        ``part`` selects output features; ``bias`` is that of the selected ones.
        """
        raise NotImplementedError

    def hidden_units(self, x: Tensor, relu: bool) -> Tensor:
        """Return x W^T + b for x (R, width), in a type that the next map rounds to its own type.

        With ``relu``, negative results become 0.
        """
        return self.product(x, self.bias, relu)


class Bf16Linear(RoundedLinear):
    """Linear map that rounds W and x to bf16. The result has the type float32.

    PyTorch's product rounds b and the result to bf16, too. The kernels do not.
    """

    packed: Tensor | None
    """W for the kernels, if they are used."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` (out, width) and ``bias`` (out,) are those of the map to replace."""
        super().__init__(weight.detach().bfloat16(), bias)
        packed = kernels.pack_bf16(self.weight) if in_kernels["maps"] else None
        self.register_buffer("packed", packed)

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        if self.packed is None or not kernels.usable(x):
            return _in_bf16(x, self.weight[part], bias, relu).float()
        start, stop, _ = part.indices(len(self.weight))
        extra = start % kernels.BLOCK  # outputs before the part, in its first block
        out = kernels.bf16_product(x, self.packed[start - extra :], stop - start + extra)
        out = out[:, extra:].contiguous()
        if bias is not None:
            return kernels.add_bias(out, bias, relu)
        return out.relu_() if relu else out

    def hidden_units(self, x: Tensor, relu: bool) -> Tensor:
        if self.packed is None:
            return _in_bf16(x, self.weight, self.bias, relu)
        return self.product(x, self.bias, relu)


class Bf16Projection(RoundedLinear):
    """Output projection in the kernels: W and x are rounded to bf16, and the logits are not.

    Logits in bf16 have 8 significant bits, so different logits would become equal.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` (V, width) and ``bias`` (V,) are those of the projection to replace."""
        super().__init__(weight.detach().bfloat16(), bias)
        self.register_buffer("packed", kernels.pack_bf16(self.weight))
        self.packed: Tensor

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        assert part == ALL and not relu
        out = kernels.bf16_product(x.float(), self.packed, len(self.weight))
        return out if bias is None else out.add_(bias)


def _in_bf16(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    out = F.linear(x.bfloat16(), weight, None if bias is None else bias.bfloat16())
    return out.relu_() if relu else out


def linear_part(linear: nn.Linear | RoundedLinear, x: Tensor, part: slice) -> Tensor:
    """Return the output features ``part`` of a linear map: (..., width) -> (..., features)."""
    bias = None if linear.bias is None else linear.bias[part]
    if isinstance(linear, RoundedLinear):
        out = linear.product(x.reshape(-1, x.shape[-1]), bias, part=part)
        return out.view(*x.shape[:-1], -1)
    return F.linear(x, linear.weight[part], bias)
