"""An accelerator in Python, with which tests find what a machine without one would not: tensors on two devices at once.

It is registered with torch as a device of its own, `accel`, so a process that imports this module sees an accelerator
until it ends. Its tensors hold a tensor of the CPU and are computed there. Like a GPU it refuses operations between
its tensors and those of the CPU, except for copies and for numbers (tensors without dimensions).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, SupportsIndex, cast

import torch
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "accel"
FREE_BYTES = 2**30


class Stream:
    """The one stream of work: everything is done when a call returns."""

    def synchronize(self) -> None:
        pass


class Module:
    """What torch asks of a device: `torch.accel`."""

    count: ClassVar[int] = 1
    """How many there are."""
    current: ClassVar[int] = 0
    mixed: ClassVar[list[str]] = []
    """Operations that were refused."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def current_stream(self, device: object = None) -> Stream:
        return STREAM

    def stream(self, stream: Stream) -> AbstractContextManager[None]:
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


STREAM = Stream()
_setup_privateuseone_for_python_backend(NAME, backend_module=Module())
DEVICE = torch.device(NAME, 0)
torch.accelerator.get_memory_info = lambda _=None: (FREE_BYTES, FREE_BYTES)  # torch asks an allocator in C++
torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied, as on a GPU
aten = torch.ops.aten
COPIES = (aten._to_copy, aten.copy_, aten._copy_from, aten._copy_from_and_resize)


class Held(torch.Tensor):
    """A tensor on the accelerator."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Held":
        with torch.inference_mode(False):  # a view of a tensor from outside of the mode is none of the mode's own
            made = torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device=DEVICE,
            )  # fmt: skip
        assert isinstance(made, Held) and not isinstance(inner, Held)
        made.held = inner
        return made

    def __setitem__(self, index: object, value: object) -> None:
        # torch's own turns a number into a tensor where no operation in Python is called.
        if isinstance(value, torch.Tensor) and (value.requires_grad or self.requires_grad):
            super().__setitem__(index, value)  # type: ignore[index]  # whatever torch takes
        else:
            places, given = pytree.tree_map_only(torch.Tensor, _inner, (index, value))
            self.held[places] = given

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return cast(tuple[object, ...], self.held.__reduce_ex__(protocol))

    def tolist(self) -> list[object]:
        return cast(list[object], self.held.tolist())

    def __array__(self, *args: object, **given: object) -> object:
        raise TypeError(f"a tensor on {DEVICE} is copied to the CPU before numpy reads it")

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # Any above
        return f"Held({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # Any above
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return computed(func, args, dict(kwargs or {}))


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, Held):
        return tensor.held
    if tensor.ndim:
        raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} on the CPU meets one on {DEVICE}")
    return tensor


def computed(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The result of an operation, on the device where it belongs."""
    given = pytree.tree_leaves((args, kwargs))
    strays = [item for item in given if isinstance(item, torch.Tensor) and not isinstance(item, Held) and item.ndim]
    if strays and func.overloadpacket not in COPIES:
        Module.mixed.append(str(func))
        raise RuntimeError(f"{func}: a tensor of shape {tuple(strays[0].shape)} on the CPU meets one on {DEVICE}")
    named = [item for item in given if isinstance(item, torch.device)]
    inner = pytree.tree_map_only(Held, lambda tensor: tensor.held, (args, kwargs))
    on_cpu = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), inner)
    result = cast(Callable[..., object], func)(*on_cpu[0], **on_cpu[1])
    if named and named[0].type != NAME:
        return result
    same = {id(value.held): value for value in given if isinstance(value, Held)}  # of operations in place
    return pytree.tree_map_only(torch.Tensor, lambda item: same[id(item)] if id(item) in same else Held(item), result)


_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda func, *args, **kwargs: computed(func, args, kwargs), "PrivateUse1")
_library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # autocast changes no precision here


def _tensor(*args: object, device: torch.device | str | None = None, **given: object) -> torch.Tensor:
    # torch's own makes the tensor where no operation in Python is called.
    if device is None or torch.device(device).type != NAME:
        return _of_cpu(*args, **given, **({} if device is None else {"device": device}))
    return _of_cpu(*args, **given).to(device)


_of_cpu: Callable[..., torch.Tensor] = torch.tensor
_device_constructors()  # remembers torch's own, which `with torch.device(…)` looks for
torch.tensor = _tensor  # type: ignore[assignment]  # of more arguments
