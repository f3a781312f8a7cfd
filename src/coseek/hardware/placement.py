"""Placement: where a model runs, in which precision, and with which attention kernel. Every model is opened with one.

Placement()                      an accelerator where there is one, else the CPU; the fastest precision there
Placement(device="cuda:1", precision="float32")
"""

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from coseek.core.files import JsonObject
from coseek.core.settings import Settings
from coseek.hardware.device import AUTO, device_of
from coseek.hardware.precision import WIDE, Precision, PrecisionSetting, Use, precision_of

if TYPE_CHECKING:
    import torch

Attention: TypeAlias = Literal["sdpa", "eager"]


class DevicePlacement(Settings):
    """Where a module is, and its attention kernel."""

    device: str = AUTO
    """`cpu`, `cuda`, `cuda:1` …; `auto` is an accelerator where there is one (in a distributed worker its own)."""
    attention: Attention = "sdpa"
    """Attention kernel: `sdpa` is torch's fused one, where the architecture has it; `eager` is plain operations."""

    def torch_device(self) -> "torch.device":
        """Raises `SettingError` for a device that is not here."""
        return device_of(self.device)

    def in_float32(self) -> "Placement":
        """The same with float32 weights, which a trainer updates."""
        return Placement(device=self.device, attention=self.attention, precision="float32")


class Placement(DevicePlacement):
    """Where a model runs, in which precision, and with which attention kernel."""

    USE: ClassVar[Use] = Use.SAMPLING
    """The use for which `auto` chooses the precision."""

    precision: PrecisionSetting = "auto"
    """Precision of weights and cache; `auto` is bfloat16 where it is clearly faster: on most accelerators, and on some
    processors (`coseek doctor` tells)."""

    def precision_at(self, width: int = WIDE) -> Precision:
        """The precision for a model of this hidden size."""
        return precision_of(self.precision, self.USE, width, self.device)

    def values(self) -> JsonObject:
        """This placement alone, for other settings that hold one."""
        return {name: getattr(self, name) for name in Placement.model_fields}


FLOAT32 = Placement(precision="float32")
"""Exact weights on the default device."""
