"""Material of the proofs: a generated world, its indexes, a run of an agent, and a tiny policy with seeded weights."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import coseek
from coseek.core.files import JsonObject

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

EXACT = {"encoder": "base", "precision": "float32", "search": "exact"}
"""Dense retrieval with the shipped encoder. `auto` would choose by a trial of the machine."""
INDEXES: dict[str, dict[str, object]] = {"bm25": {}, "dense": dict(EXACT)}


class Material:
    """Everything that several proofs share, made in one folder when it is first used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def data(self) -> coseek.Dataset:
        return coseek.make_world(self.folder / "world", "tiny", 5, train=64, dev=8, test=8)

    @cached_property
    def questions(self) -> list[coseek.Question]:
        """The training questions, those of more hops among them."""
        return self.data.questions("train")

    @cached_property
    def indexes(self) -> Mapping[str, coseek.Retriever]:
        world = self.data.folder
        return {
            name: coseek.build_index(world, name, self.folder / name, settings) for name, settings in INDEXES.items()
        }

    def index_folder(self, name: str) -> Path:
        """The folder of an index."""
        assert name in self.indexes
        return self.folder / name

    @cached_property
    def run(self) -> Path:
        """A run of an agent with deliberate mistakes over BM25: about a hundred searches."""
        out = self.folder / "run"
        coseek.run_agent(self.data.folder, "faulty-expert", self.index_folder("bm25"), out, split="train")
        return out

    @cached_property
    def policy(self) -> Path:
        """A model folder: see `write_policy`."""
        return write_policy(self.folder / "policy", [f"{passage.title} {passage.text}" for passage in self.data.corpus])


TAGS = [f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/")]
AFTER_TEXT, AFTER_OPENING, AFTER_CLOSING = 0, 1, 2
"""Hidden dimensions that say what the last token was."""
ENDS = ("\u010a", "\u0120?", "?")
"""Tokens with which a prompt may end, a line break and question marks: they count as closing tags."""
PREFERENCES = {
    "<search>": (-4.0, -4.0, 4.0),
    "<answer>": (-4.0, -4.0, 3.4),
    "</search>": (2.6, -4.0, -4.0),
    "</answer>": (1.8, -4.0, -4.0),
}
"""Weights of tags in the output layer for these dimensions: some turns search, some answer, and some do neither."""


def write_policy(folder: Path, texts: list[str]) -> Path:
    """Write a Llama of 40,000 seeded weights with a tokenizer of the texts. It uses no code of coseek.

    Its first dimensions are set by hand, so that its turns are actions of the protocol now and then.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|pad|>", "<|end|>", *TAGS]
    rust.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=700, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="<|pad|>", eos_token="<|end|>", additional_special_tokens=TAGS
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        prefer_actions(model.model.embed_tokens.weight, model.lm_head.weight, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prefer_actions(embedding_VH: "Tensor", output_VH: "Tensor", tokenizer: "PreTrainedTokenizerFast") -> None:
    """Set the dimensions of the last token's kind, and what follows each kind."""
    kinds = {tag: AFTER_CLOSING if tag.startswith("</") else AFTER_OPENING for tag in TAGS}
    kinds |= {token: AFTER_CLOSING for token in ENDS if token in tokenizer.get_vocab()}
    embedding_VH[:, :3] = 0.0
    output_VH[:, :3] = 0.0
    embedding_VH[:, AFTER_TEXT] = 2.0
    for token, kind in kinds.items():
        row_H = embedding_VH[tokenizer.convert_tokens_to_ids(token)]
        row_H[AFTER_TEXT] = 0.0
        row_H[kind] = 2.0
    for tag, weights in PREFERENCES.items():
        for kind, weight in enumerate(weights):
            output_VH[tokenizer.convert_tokens_to_ids(tag), kind] = weight


def recipe_file(path: Path, settings: Mapping[str, object]) -> Path:
    """Write settings as a recipe: JSON is YAML."""
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def json_lines(path: Path) -> list[JsonObject]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def movement(before: Path, after: Path) -> dict[str, list[float]]:
    """How far each weight of a model file moved: the length of the change, and its product with a fixed vector."""
    import torch
    from safetensors.torch import load_file
    from tests.proof.canonical import rounded

    old, new = load_file(before / "model.safetensors"), load_file(after / "model.safetensors")
    assert old.keys() == new.keys()
    moved: dict[str, list[float]] = {}
    for name in sorted(new):
        change = (new[name].double() - old[name].double()).flatten()
        probe = torch.arange(len(change), dtype=torch.float64).add(1).cos()
        moved[name] = [rounded(float(change.norm())), rounded(float(change @ probe))]
    return moved
