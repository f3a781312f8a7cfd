"""A tiny encoder with random weights and all parts of a real one; a batch takes 20 ms."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coseek.core.files import JsonObject
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORDS = [first + last for first in "bdfgk" for last in "aeiou"]
"""Words that are one token."""


def make_encoder(
    folder: Path, pooling: str = "mean", *, normalise: bool = True, hidden: int = 32, seed: int = 0, tokens: int = 64
) -> Path:
    """Make a sentence-transformers folder: a one-layer BERT, its tokenizer, pooling and optional normalisation."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel

    tokenizer = _tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    body = Transformer(str(folder), max_seq_length=tokens)
    ends = [Normalize()] if normalise else []
    model = SentenceTransformer(modules=[body, Pooling(hidden, pooling), *ends], device="cpu")
    model.save(str(folder), create_model_card=False)
    return folder


def _tokenizer() -> "PreTrainedTokenizerFast":
    """The words above and single letters, with the special tokens of BERT."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pad, unknown, first, last = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
    letters = [chr(code) for code in range(ord("!"), 127)]
    tokens = dict.fromkeys([pad, unknown, first, last, *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    vocabulary = {token: ident for ident, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(name, vocabulary[name]) for name in (first, last)]
    )
    names = {"pad_token": pad, "unk_token": unknown, "cls_token": first, "sep_token": last}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def build_killed_once(corpus: Corpus, retriever: str, folder: Path, settings: JsonObject) -> None:
    """Build an index, kill the build half-way, then resume it."""

    def kill(what: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, retriever, folder, settings, kill)
    build_index(corpus, retriever, folder, settings)


def sentences(count: int) -> Corpus:
    """Make `count` different passages of various lengths."""
    passages = []
    for row in range(count):
        digits = [row // 25**power % 25 for power in range(4)]
        text = " ".join(WORDS[digit] for digit in digits)
        passages.append(Passage(f"p{row}", WORDS[row % 25], f"{text} " * (1 + row * 7 % 5)))
    return Corpus(passages)
