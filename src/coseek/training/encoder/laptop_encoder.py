"""Laptop encoder: a sentence-transformers folder of stock modules, small enough to train from random weights.

It is a small BERT with a tokenizer trained on laptop worlds. `[SEP]` is a special token of the tokenizer, which views
with separators need. All bytes are in the vocabulary, so no name is unknown.
"""

import copy
from collections.abc import Iterable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import AutoModelForMaskedLM, BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from coseek.core.errors import DataError, SettingError
from coseek.core.files import atomic_folder
from coseek.hardware.placement import Placement
from coseek.models.pretrained import quiet
from coseek.retrieval.retrievers.late_interaction import TOKENS, with_head
from coseek.retrieval.vectors.encoder import EncoderCard, load_encoder
from coseek.training.encoder.recipe import LaptopEncoderSettings

PAD, CLS, SEP = "[PAD]", "[CLS]", "[SEP]"


def make_laptop_encoder(settings: LaptopEncoderSettings, texts: Iterable[str], folder: Path, seed: int) -> None:
    """Write an untrained encoder and a tokenizer trained on `texts`, atomically."""
    if settings.hidden % settings.heads:
        raise SettingError(f"heads must divide hidden; got hidden {settings.hidden}, heads {settings.heads}")
    tokenizer = learn_tokenizer(texts, settings.vocabulary)
    atomic_folder(folder, lambda temp_folder: _write(settings, tokenizer, temp_folder, seed))


def _write(settings: LaptopEncoderSettings, tokenizer: PreTrainedTokenizerFast, folder: Path, seed: int) -> None:
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.feed_forward,
        max_position_embeddings=settings.max_tokens,
        hidden_dropout_prob=0.0,  # training worlds are unlimited, so there is no overfitting
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        modules: list[nn.Module] = [Transformer(str(folder), max_seq_length=settings.max_tokens)]
        if settings.dimension is not None:
            # A text names many things, and a narrow vector would mix them.
            modules.append(
                Dense(settings.hidden, settings.dimension, activation_function=nn.ReLU(), module_input_name=TOKENS)
            )
        modules += [Pooling(settings.dimension or settings.hidden, settings.pooling), Normalize()]
        model = SentenceTransformer(modules=modules, device="cpu")
        model.save(str(folder), create_model_card=False)


def make_token_encoder(start: Path, dimension: int, folder: Path, seed: int, *, trust: bool = False) -> None:
    """Write an encoder of token vectors, atomically: the language model of another encoder and an untrained layer."""
    encoder = load_encoder(start, Placement(device="cpu"), "float32", trust=trust)
    body = encoder[0]
    assert isinstance(body, Transformer)
    head = Dense(
        body.get_embedding_dimension(),
        dimension,
        bias=False,
        activation_function=nn.Identity(),
        module_input_name=TOKENS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nn.init.orthogonal_(head.linear.weight)
    card = EncoderCard.of(start).model_copy(update={"pooling": "none", "normalise": True, "similarity": "maxsim"})

    def write(temp_folder: Path) -> None:
        with quiet():
            with_head(encoder, [head], start).save(str(temp_folder), create_model_card=False)
        card.save(temp_folder)

    atomic_folder(folder, write)


def make_sparse_encoder(start: Path, folder: Path, seed: int, *, trust: bool = False) -> None:
    """Write an encoder of word weights, atomically: the language model of another encoder, whose token vectors weigh
    words by the model's own word vectors. Matrices between the two begin as the identity. Raises `DataError` if
    transformers has no masked language model of this type."""
    encoder = load_encoder(start, Placement(device="cpu"), "float32", trust=trust)
    trunk, tokenizer = encoder.transformers_model, encoder.tokenizer
    assert trunk is not None
    config = copy.deepcopy(trunk.config)
    config.tie_word_embeddings = True
    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not trust:
        raise DataError(
            f"kind=sparse needs a masked language model, and transformers has none of type {config.model_type} "
            f"({start}); take another encoder, or kind=late-interaction"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForMaskedLM.from_config(config, trust_remote_code=trust)
    network.base_model.load_state_dict(trunk.state_dict(), strict=False)  # without the pooler
    for name, weight in network.named_parameters():
        if weight.ndim == 2 and not name.startswith(network.base_model_prefix):
            nn.init.eye_(weight)
    card = EncoderCard.of(start).model_copy(update={"pooling": "none", "normalise": False, "similarity": "words"})

    def write(temp_folder: Path) -> None:
        with quiet():
            network.save_pretrained(temp_folder)
            tokenizer.save_pretrained(temp_folder)
            body = Transformer(str(temp_folder), max_seq_length=encoder.max_seq_length, transformer_task="fill-mask")
            SparseEncoder(modules=[body, SpladePooling()], device="cpu").save(str(temp_folder), create_model_card=False)
        card.save(temp_folder)

    atomic_folder(folder, write)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a lower-cased byte-level BPE. Equal texts give equal tokenizers, unlike with the library's WordPiece."""
    rust = Tokenizer(models.BPE())
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, CLS, SEP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(texts, trainer)
    special_tokens = [(name, rust.token_to_id(name)) for name in (CLS, SEP)]
    rust.post_processor = processors.TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=special_tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token=PAD, cls_token=CLS, sep_token=SEP, clean_up_tokenization_spaces=False
    )
