"""Tiny real networks of several architectures, and rows to run through them."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from coseek.data.question import Question
from coseek.models.laptop import LaptopSettings
from coseek.models.model import EpisodeState, Model, Request, Turn

TEXTS = [" one fish two fish red fish blue fish", " the cat sat on the mat"]
SMALL = LaptopSettings(hidden=32, feed_forward=48, vocabulary=300, max_positions=256)

VOCABULARY = 300
"""Bytes, the end of text and room for a few special tokens."""

HYBRID = ["conv", "full_attention", "conv", "full_attention"]
BY_TURNS = ["sliding_attention", "full_attention"]

NETWORKS: dict[str, dict[str, object]] = {
    "lfm2": {"num_hidden_layers": 4, "layer_types": HYBRID, "block_auto_adjust_ff_dim": False},
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "mistral": {"sliding_window": 6},  # every layer sees six tokens only
    "gemma3_text": {"sliding_window": 6, "layer_types": BY_TURNS, "head_dim": 8},
    "deepseek_v3": {  # keys and values are cached compressed, in two widths
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "moe_intermediate_size"), 16),
        "n_routed_experts": 4,
        **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
        "num_key_value_heads": 4,
        **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
        "num_experts_per_tok": 2,
    },
    "gpt2": {"n_positions": 256},  # learned positions, dropout
}
"""Architecture → what is special about the tiny one that is made of it."""
FUSED = ("lfm2", "llama", "qwen2", "qwen3")
"""Those that the fused engine runs."""

SHAPE: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 256,
}


def network(name: str, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough for the distributions to be far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SHAPE, **NETWORKS[name]}))
        assert isinstance(model, PreTrainedModel)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=0.2)
    model.eval()
    return model


def logits_of(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """What one plain forward pass over a whole row says: logits_TV."""
    with torch.no_grad():
        outputs = model.forward(input_ids=torch.tensor([list(ids)], device=model.device))
    logits = outputs.logits[0]
    assert isinstance(logits, torch.Tensor)
    return logits


def request(key: int, ids: Sequence[int], max_tokens: int = 8, seed: int | None = None) -> Request:
    return Request(key, tuple(ids), max_tokens, key if seed is None else seed, EpisodeState(Question(str(key), "?")))


def random_ids(rng: random.Random, low: int, high: int) -> list[int]:
    """Bytes alone: no end of text, no special token."""
    return [rng.randrange(32, 127) for _ in range(rng.randint(low, high))]


def converse(model: Model, rows: Sequence[int], turns: int = 3, lengths: int = 8) -> dict[int, list[Turn]]:
    """Several turns of each row, with environment text between them; what a row is told depends on its key alone."""
    turns_of: dict[int, list[Turn]] = {key: [] for key in rows}
    for key in rows:
        model.start(request(key, random_ids(random.Random(f"{key}"), 1, 20), 2 + key % lengths))
    open_rows = set(rows)
    while open_rows:
        for turn in model.step():
            turns_of[turn.key].append(turn)
            if len(turns_of[turn.key]) == turns:
                model.close(turn.key)
                open_rows.remove(turn.key)
            else:
                told = random_ids(random.Random(f"{turn.key} {len(turns_of[turn.key])}"), 0, 25)
                model.extend(request(turn.key, told, 2 + turn.key % lengths))
    return turns_of


def transcript(key: int, turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    """The row's ids in order, and where in them the turns' tokens stand."""
    ids = random_ids(random.Random(f"{key}"), 1, 20)
    places: list[int] = []
    for number, turn in enumerate(turns, start=1):
        places += range(len(ids), len(ids) + len(turn.ids))
        ids += turn.ids
        ids += random_ids(random.Random(f"{key} {number}"), 0, 25)
    return ids, places


def halve(path: Path) -> None:
    """Round the weights of a file to float16, as those of shipped models are."""
    weights = {
        name: weight.half() if weight.is_floating_point() else weight for name, weight in load_file(path).items()
    }
    save_file(weights, path, metadata={"format": "pt"})
