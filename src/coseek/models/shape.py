"""Shape: the sizes of a model, read from its configuration without torch."""

from dataclasses import dataclass
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_json


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
    """Whether it is an Lfm2, whose sampler joins weights in a copy of its own."""

    @property
    def cached_layers(self) -> int:
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def trunk_parameters(self) -> int:
        """Number of weights without an output layer of its own, as in a value model."""
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
    whole = config if isinstance(config, dict) else {}
    for row in (whole.get("text_config"), whole):
        found = row.get(name) if isinstance(row, dict) else None
        if isinstance(found, int):
            return found
    return 0


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
