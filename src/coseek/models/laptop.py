"""The laptop policy: a language model small enough to be trained from nothing on two cores.

An ordinary Hugging Face folder of a stock architecture, so that everything which works on it works on any other folder.
Short convolutions between attention layers let it learn to copy names out of what it read within a hundred steps; a
plain transformer of this size does not learn that in minutes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.settings import Settings
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LaptopSettings(Settings):
    """The shape of a laptop policy; the defaults make about 0.9 M parameters."""

    hidden: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    layers: tuple[Literal["conv", "full_attention"], ...] = ("conv", "full_attention", "conv", "full_attention")
    """What each layer is, bottom to top."""
    heads: int = Field(default=4, ge=1)
    """Query heads of an attention layer; `hidden` is divided among them."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads; divides `heads`."""
    feed_forward: int = Field(default=320, ge=8)
    """Inner width of the gated feed-forward part."""
    vocabulary: int = Field(default=3000, ge=1)
    """At most this many tokens are learnt from the texts, special ones and the 256 bytes included."""
    max_positions: int = Field(default=4096, ge=1)
    """Longest context that the folder's configuration admits."""


def make_policy(
    settings: LaptopSettings, texts: Iterable[str], special_tokens: Sequence[str], folder: Path, seed: int
) -> None:
    """Write an untrained policy and a tokenizer learnt from `texts` as one Hugging Face folder, in one rename."""
    from coseek.models.pretrained import save_model

    tokenizer = HfTokenizer(train_tokenizer(texts, special_tokens, settings.vocabulary))
    save_model(new_model(settings, tokenizer, seed), tokenizer, folder)


def check_shape(settings: LaptopSettings) -> None:
    """Refuse a shape that no network can have."""
    if settings.hidden % settings.heads or settings.heads % settings.kv_heads:
        raise SettingError(
            f"heads must divide hidden and kv_heads must divide heads; got hidden {settings.hidden}, "
            f"heads {settings.heads}, kv_heads {settings.kv_heads}"
        )


def new_model(settings: LaptopSettings, tokenizer: HfTokenizer, seed: int) -> "PreTrainedModel":
    """An untrained policy in float32; the same seed gives the same weights, and the global generator is left alone."""
    import torch
    from transformers import Lfm2Config, Lfm2ForCausalLM

    check_shape(settings)
    config = Lfm2Config(
        vocab_size=tokenizer.size,
        hidden_size=settings.hidden,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=len(settings.layers),
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        layer_types=list(settings.layers),
        max_position_embeddings=settings.max_positions,
        block_auto_adjust_ff_dim=False,  # else the library quietly makes `feed_forward` two thirds of what was asked
        tie_word_embeddings=True,
        pad_token_id=tokenizer.fast.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Lfm2ForCausalLM(config)
