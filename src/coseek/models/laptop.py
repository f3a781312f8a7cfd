"""Laptop policy: a language model that trains from scratch on two cores.

It is a Hugging Face folder of a stock architecture. Short convolutions between attention layers let it learn to copy
names within a hundred steps; a plain transformer of this size does not learn that in minutes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.settings import Settings
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LaptopSettings(Settings):
    """The shape of a laptop policy; the defaults give about 0.9 M parameters."""

    hidden: int = Field(default=128, ge=8)
    """Hidden size."""
    layers: tuple[Literal["conv", "full_attention"], ...] = ("conv", "full_attention", "conv", "full_attention")
    """The kinds of the layers, bottom to top."""
    heads: int = Field(default=4, ge=1)
    """Query heads; `hidden` must be an even multiple of them."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads; must divide `heads`."""
    kernel: int = Field(default=3, ge=1)
    """Number of tokens that a convolution sees."""
    embedding_std: float = Field(default=0.02, gt=0.0)
    """Standard deviation of the untrained embeddings."""
    feed_forward: int = Field(default=320, ge=8)
    """Inner width of the gated feed-forward layer."""
    vocabulary: int = Field(default=3000, ge=1)
    """The maximum vocabulary, including special tokens and the 256 bytes."""
    single_digits: bool = False
    """Whether each digit is a token: numbers that were never met are then compared digit by digit."""
    max_positions: int = Field(default=4096, ge=1)
    """The maximum context in the folder's configuration."""


def make_policy(
    settings: LaptopSettings, texts: Iterable[str], special_tokens: Sequence[str], folder: Path, seed: int
) -> None:
    """Write an untrained policy and a tokenizer trained on `texts` as a Hugging Face folder, atomically."""
    from coseek.models.pretrained import save_model

    tokenizer = HfTokenizer(train_tokenizer(texts, special_tokens, settings.vocabulary, settings.single_digits))
    save_model(new_model(settings, tokenizer, seed), tokenizer, folder)


def check_shape(settings: LaptopSettings) -> None:
    """Raise `SettingError` for a shape that is impossible."""
    if settings.hidden % (2 * settings.heads) or settings.heads % settings.kv_heads:  # rotary positions turn pairs
        raise SettingError(
            "hidden must be an even multiple of heads, and heads a multiple of kv_heads; got hidden "
            f"{settings.hidden}, heads {settings.heads}, kv_heads {settings.kv_heads}"
        )


def new_model(settings: LaptopSettings, tokenizer: HfTokenizer, seed: int) -> "PreTrainedModel":
    """An untrained policy in float32, determined by the seed; global random state is not changed."""
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
        conv_L_cache=settings.kernel,
        max_position_embeddings=settings.max_positions,
        block_auto_adjust_ff_dim=False,  # True would use two thirds of `feed_forward`
        tie_word_embeddings=True,
        pad_token_id=tokenizer.fast.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Lfm2ForCausalLM(config)
    embeddings = cast("torch.Tensor", model.get_input_embeddings().weight)
    embeddings.data *= settings.embedding_std / config.initializer_range
    return model
