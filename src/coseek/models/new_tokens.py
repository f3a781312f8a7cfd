"""New tokens for a pretrained model: tags of a protocol, and frequent words that its tokenizer splits."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from coseek.core.errors import DataError, SettingError
from coseek.core.files import read_json_object
from coseek.hardware.placement import Placement
from coseek.models.tokenizer import HfTokenizer, added_tokens

if TYPE_CHECKING:
    import torch

SPREAD = 1e-3
"""The standard deviation of a tag's new vector around the mean, relative to that of the existing ones."""
RANDOM_SHARE = 0.5
"""Random share of a word's new vector: words of the same pieces must differ."""


def add_tokens(source: Path, tags: Sequence[str], words: Sequence[str], folder: Path, seed: int) -> None:
    """Write the model of `source` with one token for each tag and each word to `folder`, atomically.

    The vector of a tag is close to the mean of the existing ones: farther away, it would disturb the model. The vector
    of a word is near the sum of its pieces' vectors, with the mean length of the existing ones. Existing tokens keep
    their ids and vectors, so that adding them again is a no-op. `words` are those of `spelt_words`.
    """
    import torch

    from coseek.models.pretrained import load_model, save_model

    before = HfTokenizer.load(source)
    old_vocab = before.fast.get_vocab()
    fast = _with_words(before, words).fast  # a copy: `before` still splits the new words into pieces
    existing = before.fast.get_added_vocab()
    if added_tags := [tag for tag in dict.fromkeys(tags) if tag not in existing]:
        fast.add_special_tokens({"additional_special_tokens": added_tags})
    tokenizer = HfTokenizer(fast, str(source))
    _check_ids(old_vocab, before.size, tokenizer)
    model = load_model(source, Placement(device="cpu", precision="float32"))  # saved, not run
    if tokenizer.size > _weight_of(model.get_input_embeddings()).shape[0]:  # else the table has spare rows
        model.resize_token_embeddings(tokenizer.size, mean_resizing=False)
    added_ids = range(before.size, before.size + len(words))
    pieces = {ident: before.encode(tokenizer.decode([ident])) for ident in added_ids}
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    for module in [inputs] if outputs is None else [inputs, outputs]:  # the same weight twice if tied
        weight_VD = _weight_of(module).data
        old_VD = weight_VD[: before.size]
        mean_D, std_D = old_VD.mean(0), old_VD.std(0)
        new_VD = weight_VD[before.size : tokenizer.size]  # also where the table had spare rows, which nothing trained
        new_VD[:] = mean_D + SPREAD * std_D * _randn_like(new_VD, generator)
        length = old_VD.norm(dim=1).mean()
        for ident, piece_ids in pieces.items():
            random_D, sum_D = std_D * _randn_like(std_D, generator), old_VD[piece_ids].sum(0)
            vector_D = (1 - RANDOM_SHARE) * sum_D / sum_D.norm() + RANDOM_SHARE * random_D / random_D.norm()
            weight_VD[ident] = length * vector_D / vector_D.norm()
    save_model(model, tokenizer, folder)


def _check_ids(old_ids: Mapping[str, int], size: int, new_tokenizer: HfTokenizer) -> None:
    """Raise `DataError` unless every known token has kept its id and the new ones have the ids from `size` on."""
    new_ids = new_tokenizer.fast.get_vocab()
    moved = next((token for token, ident in old_ids.items() if new_ids.get(token) != ident), None)
    if moved is not None:
        raise DataError(
            f"{new_tokenizer.source}: tokens cannot be added, since {moved!r} would move from id {old_ids[moved]} to "
            f"{new_ids.get(moved)}, away from its vector; set policy.add_tag_tokens=false and policy.add_word_tokens=0"
        )
    if {new_ids[token] for token in new_ids.keys() - old_ids.keys()} != set(range(size, new_tokenizer.size)):
        raise DataError(
            f"{new_tokenizer.source}: tokens cannot be added, since their ids would not follow the known {size}; set "
            "policy.add_tag_tokens=false and policy.add_word_tokens=0"
        )


def spelt_words(folder: Path, texts: Iterable[str], most: int) -> list[str]:
    """The `most` frequent words of `texts` that the tokenizer of a model folder splits, each with the space before it,
    in the tokenizer's own alphabet. Words that were added before count among the `most` and are skipped, so that the
    same texts add nothing twice. Raises `SettingError` for a tokenizer that is not a BPE of words."""
    from tokenizers.models import BPE

    if not most:
        return []
    rust = HfTokenizer.load(folder).fast.backend_tokenizer
    if rust.pre_tokenizer is None or not isinstance(rust.model, BPE):
        raise SettingError(
            f"words cannot be added to the tokenizer of {folder}, which is not a BPE; set policy.add_word_tokens=0"
        )
    vocab = rust.get_vocab()
    counts = Counter(word for text in texts for word, _ in rust.pre_tokenizer.pre_tokenize_str(text))
    ignores_merges = rust.model.ignore_merges
    rust.model.ignore_merges = False  # an added word is in the vocabulary, and no merges lead to it
    split = [
        (word, count)
        for word, count in counts.items()
        if word not in vocab or (ignores_merges and len(rust.model.tokenize(word)) > 1)
    ]
    frequent = [word for word, _ in sorted(split, key=lambda pair: (-pair[1], pair[0]))[:most]]
    return [word for word in frequent if word not in vocab]


def new_tags(folder: Path, tags: Iterable[str]) -> list[str]:
    """The tags that are not yet tokens of a model folder; all of them if it has no tokenizer.json. Needs no torch."""
    existing = added_tokens(folder / "tokenizer.json") or {}
    return [tag for tag in dict.fromkeys(tags) if tag not in existing]


def _with_words(tokenizer: HfTokenizer, words: Sequence[str]) -> HfTokenizer:
    """A tokenizer with these words as single tokens."""
    if not words:
        return tokenizer
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        file = folder / "tokenizer.json"
        tree = read_json_object(file, foreign=True)
        model = cast("dict[str, object]", tree["model"])
        vocab = cast("dict[str, int]", model["vocab"])
        # Added tokens get their ids in the vocabulary, too. Otherwise they would move after the new words.
        for token in cast("list[dict[str, object]]", tree["added_tokens"]):
            vocab.setdefault(str(token["content"]), cast(int, token["id"]))
        vocab |= {word: tokenizer.size + number for number, word in enumerate(words)}
        model["ignore_merges"] = True  # a word of the vocabulary is not split
        file.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")
        return HfTokenizer.load(folder)


def _randn_like(like: "torch.Tensor", generator: "torch.Generator") -> "torch.Tensor":
    """Numbers of a standard normal distribution, in the shape of `like`."""
    import torch

    return torch.randn(like.shape, generator=generator).to(like)


def _weight_of(module: "torch.nn.Module") -> "torch.Tensor":
    return cast("torch.Tensor", module.weight)
