"""Devices whose speed is known from their data sheets."""

from typing import NamedTuple

from fusetk.errors import ConfigError


class Device(NamedTuple):
    """The data sheet of a device: floating-point operations a second, without sparsity.

    A multiply-add is two operations.
    """

    title: str
    fp32: float
    tf32: float
    half: float  # fp16, and bf16 if the device has it
    has_bf16: bool = True

    def peak(self, precision: str, matmul: str) -> float:
        """Return the multiply-adds a second in the precision of a config.

        Raises ConfigError if the device does not have this precision.
        """
        if precision == "bf16" and not self.has_bf16:
            raise ConfigError(
                f"training.precision: {self.title} has no bf16; set training.precision=fp16"
            )
        operations = self.fp32 if matmul == "highest" else self.tf32
        return (self.half if precision != "fp32" else operations) / 2


# Sources: NVIDIA's data sheets of V100 SXM2, A100 SXM4 80 GB and H100 SXM5.
DEVICES = {
    "v100": Device("NVIDIA V100", 15.7e12, 15.7e12, 125e12, has_bf16=False),
    "a100": Device("NVIDIA A100", 19.5e12, 156e12, 312e12),
    "h100": Device("NVIDIA H100", 67e12, 494.5e12, 989e12),
}
UPDATES = 6  # number of measured updates on a device without a data sheet
# Assumed share of the peak; matrix products of these models are small, and other operations count.
SHARE = 0.3
