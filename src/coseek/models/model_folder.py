"""Model folders: the shipped models, download commands for missing ones, the sizes in a configuration, and errors that
name the folder. Imports no torch and downloads nothing.

`weights/policy/NAME` of the package is a language model and `weights/encoder/NAME` an encoder, each a Hugging Face
folder with float16 weights and a model card (README.md). `python -m bench.ship` writes them.

Four libraries read weights, configuration, architecture and tokenizer. For a broken file each raises any `Exception`,
or a `BaseException` for a panic of Rust code. All become a `DataError`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal, TypeAlias, cast

from coseek.core.errors import CoseekError, DataError, closest
from coseek.core.files import WRONG_SHAPE, JsonObject, in_training, read_json, read_json_object
from coseek.core.strict_json import parse_lenient

ADAPTER_CONFIG = "adapter_config.json"
"""The file that the library `peft` writes next to the weights of an adapter."""
_MAX_HEADER_BYTES = 100_000_000
"""Maximum header of safetensors, by its format."""
_PANIC = "PanicException"
"""The exception of tokenizers for a panic, in a module that cannot be imported."""


def check_is_model(folder: Path) -> None:
    """Raise `DataError` for a folder that is missing or has no model. The error names the policy or generator in a
    training's folder, and how to use an adapter or a GGUF file."""
    if hint := of_another_kind(folder):
        raise DataError(hint)
    if not folder.is_dir():
        raise DataError(missing("model folder", folder, known=shipped_models()))
    if not (folder / "config.json").is_file():
        hint = in_training(folder, "policy", "policy/trained", "policy/warm")
        hint = hint or in_training(folder, "generator", "generator")
        raise DataError(f"{folder} is not a model folder: it has no config.json{hint}")


def of_another_kind(path: Path) -> str:
    """How to use an adapter's folder, a GGUF file or its folder; empty for any other path."""
    if (path / ADAPTER_CONFIG).is_file():
        return _adapter_hint(path)
    if path.suffix == ".gguf" and path.is_file():
        return _gguf_hint(f"{path} is", path)
    files = [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
    return _gguf_hint(f"{path} holds", files[0]) if files else ""


def _gguf_hint(subject: str, file: Path) -> str:
    return (
        f"{subject} a GGUF file, which coseek does not run; serve it (llama-server --model {file})"
        " and name the server's URL, or fetch the model's safetensors"
    )


def _adapter_hint(folder: Path) -> str:
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
    """Open a folder with a library inside the block. Errors name `what` it should contain."""
    # Before the library, which would accept NaN and any depth, or continue without the file.
    for name in ("config.json", "generation_config.json"):
        if os.path.lexists(folder / name):
            read_json_object(folder / name, foreign=True)
    try:
        yield
    except CoseekError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise DataError(f"{folder} holds no {what} that can be opened: {first_line(error)}") from None


def tensor_types(path: Path) -> dict[str, str]:
    """The number type of each tensor of a safetensors file: `F32`, `BF16`, `I8`, … Raises `DataError`."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8) else b""
    try:
        tensors = cast(JsonObject, parse_lenient(header.decode("utf-8")))
        tensors.pop("__metadata__", None)
        return {name: str(tensor.get("dtype")) for name, tensor in tensors.items() if isinstance(tensor, dict)}
    except WRONG_SHAPE as error:
        raise DataError(f"{path} is not a safetensors file ({first_line(error)}); fetch or save it again") from None


def first_line(error: BaseException) -> str:
    """The first line of a message, without its full stop. Libraries write long ones."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:300]}" if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder-only transformer with gated feed-forward layers and grouped-query attention."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    tied: bool
    head_size: int
    attention_bias: bool = True
    """Biases of q, k and v (Qwen2 has them)."""
    attention_layers: int | None = None
    """Layers with a key-value cache; all layers when not given."""
    lfm2: bool = False
    """Whether it is an Lfm2, whose sampler has its own copy of concatenated weights."""

    @property
    def cached_layers(self) -> int:
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def trunk_parameters(self) -> int:
        """Number of weights without a separate output layer, as in a value model."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def layer_parameters(self) -> int:
        """Number of weights of one layer."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys if self.attention_bias else 0)
        return attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden

    def cache_bytes(self, itemsize: int) -> int:
        """Bytes of the keys and values of one token, of numbers of `itemsize` bytes."""
        return 2 * self.cached_layers * self.kv_heads * self.head_size * itemsize

    @property
    def parameters(self) -> int:
        """Number of weights: exact for Llama and Qwen2; other layers are counted as attention layers."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def config(self) -> JsonObject:
        """The shape as a Qwen2 `config.json`."""
        return {
            "model_type": "qwen2", "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.feed_forward, "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied,
        }  # fmt: skip


def hidden_size(folder: Path) -> int:
    """The hidden size in `config.json`; 0 if it is not stated."""
    return _size(folder, "hidden_size")


def vocabulary_size(folder: Path) -> int:
    """The number of tokens that the model embeds, in `config.json`; 0 if it is not stated."""
    return _size(folder, "vocab_size")


def _size(folder: Path, name: str) -> int:
    path = folder / "config.json"
    config = read_json(path, foreign=True) if path.is_file() else None
    text_config = config.get("text_config") if isinstance(config, dict) else None
    sizes = (part.get(name) for part in (text_config, config) if isinstance(part, dict))
    return next((size for size in sizes if isinstance(size, int)), 0)


def shape_of_config(config: object, source: Path | str = "the model's configuration") -> Shape:
    """The shape that a `config.json` describes. Raises `DataError` for another kind of model."""
    row = config if isinstance(config, dict) else {}
    try:
        hidden, heads = int(row["hidden_size"]), int(row["num_attention_heads"])
        kinds = row.get("layer_types")
        return Shape(
            hidden=hidden,
            layers=int(row["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(row.get("num_key_value_heads") or heads),
            feed_forward=int(row["intermediate_size"]),
            vocabulary=int(row["vocab_size"]),
            tied=bool(row.get("tie_word_embeddings", False)),
            head_size=int(row.get("head_dim") or hidden // heads),
            attention_bias=row.get("model_type") == "qwen2",
            attention_layers=sum("attention" in kind for kind in kinds) if isinstance(kinds, list) else None,
            lfm2=row.get("model_type") == "lfm2",
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise DataError(
            f"{source} does not describe a decoder whose size can be worked out (hidden_size, num_hidden_layers, "
            "num_attention_heads, intermediate_size, vocab_size); leave out what needs it (--dry-run, sizes in GiB)"
        ) from None


HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
"""A model's or a data set's name on the Hugging Face Hub."""
FAMILIES = {
    "Qwen": "Qwen",
    "DeepSeek-R1-": "deepseek-ai",
    "e5-": "intfloat",
    "multilingual-e5-": "intfloat",
    "bge-": "BAAI",
}
"""Prefix of model names in recipes and docs → publisher on the hub."""


def missing(kind: str, path: Path | str, setting: str = "", known: Sequence[str] = ()) -> str:
    """The sentence for a missing folder, with the download command for a model on the hub; `setting` names it."""
    recipe_note = f", which the recipe names as {setting}" if setting else ""
    return f"there is no {kind + ' ' if kind else ''}{path}{recipe_note}; {way_out(str(path), known)}"


def way_out(name: str, known: Sequence[str] = ()) -> str:
    """`check the path`, and the download command for a model on the hub, or the closest of the `known` models."""
    fetch = fetch_command(name)
    if not fetch:
        close = closest(name, known) if Path(name).name == name else None
        return "check the path" if close is None else f"did you mean {close!r}, which coseek ships? Else check the path"
    hub_name, folder = fetch
    line = f"hf download {hub_name} --local-dir {quote(folder)}"
    then = "" if folder == name else f", then name {folder}"
    return f"check the path, or fetch it first, if it is the model {hub_name} on the Hugging Face Hub: {line}{then}"


def fetch_command(name: str) -> tuple[str, str] | None:
    """The name on the hub and the download folder; `None` for a plain path."""
    parts = Path(name).parts
    last_part = parts[-1] if parts else ""
    owner = next((owner for prefix, owner in FAMILIES.items() if last_part.startswith(prefix)), None)
    if owner is not None and HUB_NAME.fullmatch(f"{owner}/{last_part}"):
        return f"{owner}/{last_part}", name if parts[:-1] not in ((), (owner,)) else f"models/{last_part}"
    if HUB_NAME.fullmatch(name) and not Path(parts[0]).is_dir():
        return name, f"models/{last_part}"
    return None


Kind: TypeAlias = Literal["policy", "encoder"]

WEIGHTS = Path(__file__).parent.parent / "weights"
"""The folder of all shipped models; absent where none are shipped."""
PUBLISHED_AS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""Name in recipes → repository on the hub, for encoders that come with another Python package."""


def shipped_models(kind: Kind = "policy", root: Path = WEIGHTS) -> list[str]:
    """The names of the shipped models of a kind, in alphabetical order."""
    folder = root / kind
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in paths if path.is_dir() and not path.name.startswith("."))


def model_path(name: str | Path, kind: Kind = "policy", root: Path = WEIGHTS) -> Path:
    """The folder of a model: a shipped one for its bare name, else the path, with `~` expanded; it may be missing.

    The name `base` is the shipped model even beside a folder `base`, which is named `./base`. A `Path` is never a name.
    """
    if isinstance(name, str) and name in shipped_models(kind, root):
        return root / kind / name
    return Path(os.path.expanduser(name))  # `Path.expanduser` fails for an unknown user, as in `~models/policy`
