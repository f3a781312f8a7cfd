"""Model folders: whatever a library raises while it reads one becomes a `DataError` that names the folder.

Four libraries read weights, configuration, architecture and tokenizer, and each passes on what a broken file makes its
own code raise: any `Exception`, and for panics of Rust code one that is none.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from coseek.core.errors import CoseekError, DataError
from coseek.core.files import WRONG_SHAPE, Json, JsonObject, read_json_object
from coseek.core.strict_json import parse_lenient

ADAPTER_CONFIG = "adapter_config.json"
"""What the library `peft` writes beside the weights of an adapter."""
_LONGEST_HEAD = 100_000_000
"""Bytes of a header of safetensors, by its format."""
_PANIC = "PanicException"
"""What tokenizers raises for a panic; it lies in a module that cannot be imported."""


def check_is_model(folder: Path) -> None:
    """Raise `DataError` for a folder without a model; of a training it names the policy inside, and of an adapter or a
    GGUF file what to do with it."""
    if other := of_another_kind(folder):
        raise DataError(other)
    if not (folder / "config.json").is_file():
        inside = [path for name in ("trained", "warm") if (path := folder / "policy" / name).is_dir()]
        hint = f"; the policy of this training is {inside[0]}" if inside else ""
        raise DataError(f"{folder} is not a model folder: it has no config.json{hint}")


def of_another_kind(path: Path) -> str:
    """Say what to do with an adapter's folder, and with a GGUF file or its folder; empty for any other path."""
    if (path / ADAPTER_CONFIG).is_file():
        return _adapter(path)
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(f"{path} is", path)
    files = [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
    return _gguf(f"{path} holds", files[0]) if files else ""


def _gguf(subject: str, file: Path) -> str:
    return (
        f"{subject} a GGUF file, which coseek does not run; serve it (llama-server --model {file})"
        " and name the server's URL, or fetch the model's safetensors"
    )


def _adapter(folder: Path) -> str:
    config = read_json_object(folder / ADAPTER_CONFIG, foreign=True)
    base, kind = config.get("base_model_name_or_path"), str(config.get("peft_type") or "LORA").upper()
    name = "LoRA adapter" if kind == "LORA" else f"{kind} adapter"
    return (
        f"{folder} is a {name} of {base or 'a model that it does not name'}; merge it and name the merged folder: "
        f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({str(base or 'MODEL')!r}), {str(folder)!r})"
        ".merge_and_unload().save_pretrained('merged'), with the tokenizer's files beside it"
    )


@contextmanager
def library_reads(folder: Path, what: str) -> Iterator[None]:
    """Open a folder with a library inside the block. `what` it should hold is named in errors."""
    _check_config(folder)
    try:
        yield
    except CoseekError:
        raise
    except Exception as error:  # noqa: BLE001 (see above)
        raise DataError(f"{folder} holds no {what} that can be opened: {first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise DataError(f"{folder} holds no {what} that can be opened: {first_line(error)}") from None


def _check_config(folder: Path) -> None:
    """Read the configuration before the library does, which would take NaN and any depth, or go on without it."""
    for name in ("config.json", "generation_config.json"):
        if os.path.lexists(folder / name):
            read_json_object(folder / name, foreign=True)


def check_tensors(path: Path) -> None:
    """Raise `DataError` for a safetensors file that is not whole: 8 bytes with the length of the header, the header
    (JSON, with the place of each tensor), the tensors."""
    size = path.stat().st_size
    tensors, begin = _header(path)
    try:
        ends = [_end_of(tensor) for tensor in tensors.values()]
    except WRONG_SHAPE as error:
        raise _no_safetensors(path, error) from None
    if (there := size - begin) != (named := max(ends, default=0)):
        raise DataError(f"{path} has {there:,} bytes of tensors and names {named:,}; fetch or save it again")


def tensor_types(path: Path) -> dict[str, str]:
    """The number type of each tensor of a safetensors file: `F32`, `BF16`, `I8`, … Raises `DataError`."""
    tensors, _ = _header(path)
    return {name: str(tensor.get("dtype")) for name, tensor in tensors.items() if isinstance(tensor, dict)}


def _header(path: Path) -> tuple[JsonObject, int]:
    """The tensors that a safetensors file names, and where their bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(length) if length <= min(_LONGEST_HEAD, path.stat().st_size - 8) else b""
    try:
        tensors = cast(JsonObject, parse_lenient(head.decode("utf-8")))
        return {name: tensor for name, tensor in tensors.items() if name != "__metadata__"}, 8 + length
    except WRONG_SHAPE as error:
        raise _no_safetensors(path, error) from None


def _no_safetensors(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a safetensors file ({first_line(error)}); fetch or save it again")


def _end_of(tensor: Json) -> int:
    return int(cast(list[int], cast(JsonObject, tensor)["data_offsets"])[1])


def first_line(error: BaseException) -> str:
    """The first line of a message, which libraries make long, without its full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:300]}" if lines else type(error).__name__
