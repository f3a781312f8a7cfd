"""Fears about caches: a row read in pieces, among others, in any slot, must lead to the logits of one plain pass."""

import copy
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.models.networks import FUSED, NETWORKS, SHAPE, converse, logits_of, network, random_ids, request
from tests.models.test_sampler import ids, largest_gap, sampler
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from coseek.core.files import JsonObject
from coseek.models.engine import Engine, TokenBlock
from coseek.models.engines import fused
from coseek.models.engines.fused import FusedEngine
from coseek.models.engines.general import GeneralEngine
from coseek.models.lora import adapted_layers
from coseek.models.model import TurnEnd
from coseek.models.sampler import Sampler, make_engine
from coseek.training.learner.policy import attach
from coseek.training.learner.settings import LoraSettings

ENGINES = [("general", name) for name in NETWORKS] + [("own", name) for name in FUSED]


def engine_of(kind: str, model: PreTrainedModel) -> Engine:
    return (GeneralEngine if kind == "general" else FusedEngine)(model, torch.float32)


def block(slots: list[int], pieces: list[list[int]], starts: list[int], width: int) -> TokenBlock:
    ids_BW = torch.tensor([piece + [0] * (width - len(piece)) for piece in pieces])
    lengths = [len(piece) for piece in pieces]
    first = slots == list(range(len(slots)))
    return TokenBlock(ids_BW, torch.tensor(slots), torch.tensor(starts), lengths, max(starts) + width, first)


@torch.inference_mode()
def step(engine: Engine, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """The logits after the last token of each row, of which the others have been read."""
    starts = [len(row) - 1 for row in rows]
    return engine.step(torch.tensor([row[-1] for row in rows]), torch.tensor(starts), max(starts) + 1)


def read_in_pieces(engine: Engine, rows: list[list[int]], rng: random.Random) -> None:
    """All but the last token of each row, some rows at a time, in pieces of any length, padded by any amount."""
    done = [0] * len(rows)
    engine.reserve(len(rows), 64)
    while open_rows := [row for row in range(len(rows)) if done[row] < len(rows[row]) - 1]:
        chosen = rng.sample(open_rows, k=rng.randint(1, len(open_rows)))
        ends = [rng.randint(done[row] + 1, len(rows[row]) - 1) for row in chosen]
        pieces = [rows[row][done[row] : end] for row, end in zip(chosen, ends, strict=True)]
        width = max(map(len, pieces)) + rng.randint(0, 3)
        engine.read(block(chosen, pieces, [done[row] for row in chosen], width))
        for row, end in zip(chosen, ends, strict=True):
            done[row] = end


def test_a_model_whose_text_settings_are_nested_is_sampled_with_its_sliding_window() -> None:
    """As Gemma 3 from 4 B on: `sliding_window` and `layer_types` are those of `text_config`."""
    words: dict[str, object] = {**SHAPE, **NETWORKS["gemma3_text"], "bos_token_id": 0}
    sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = AutoConfig.for_model(
        "gemma3", text_config=words, vision_config={**sight, "image_size": 14, "patch_size": 14}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    rows = [random_ids(random.Random(seed), 30, 40) for seed in range(3)]
    engine = GeneralEngine(model, torch.float32)
    read_in_pieces(engine, rows, random.Random(0))
    truth_BV = torch.stack([logits_of(model, row)[-1] for row in rows])
    assert torch.allclose(step(engine, rows), truth_BV, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ENGINES)
def test_rows_read_in_pieces_lead_to_the_logits_of_one_plain_pass(kind: str, name: str) -> None:
    model = network(name)
    rng = random.Random(name)
    for _ in range(3):
        engine = engine_of(kind, model)
        rows = [random_ids(rng, 1, 40) for _ in range(6)]
        read_in_pieces(engine, rows, rng)
        for _ in range(3):
            for row, logits_V in zip(rows, step(engine, rows), strict=True):
                assert torch.allclose(logits_V, logits_of(model, row)[-1], atol=1e-4)
            rows = [[*row, *random_ids(rng, 1, 1)] for row in rows]


def test_rows_that_are_read_and_written_in_blocks_miss_no_column_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in {"ROWS_TOGETHER": 3, "COLUMNS_TOGETHER": 4, "QUERIES_TOGETHER": 5}.items():
        monkeypatch.setattr(fused, limit, value)
    model = network("llama")
    engine = FusedEngine(model, torch.float32)
    rows = [random_ids(random.Random(length), length, length) for length in (2, 4, 5, 30, 8, 9, 40)]
    read_in_pieces(engine, rows, random.Random(0))
    for row, logits_V in zip(rows, step(engine, rows), strict=True):
        assert torch.allclose(logits_V, logits_of(model, row)[-1], atol=1e-4)


@pytest.mark.parametrize("kind", ["general", "own"])
def test_rows_that_change_places_take_all_they_read_with_them(kind: str) -> None:
    model = network("lfm2")
    engine = engine_of(kind, model)
    rows = [random_ids(random.Random(number), 3, 20) for number in range(4)]
    read_in_pieces(engine, rows, random.Random(0))
    with torch.inference_mode():
        engine.cache.copy(torch.tensor([0, 1, 3, 2]), torch.tensor([3, 2, 0, 1]), 20)
        engine.reserve(9, 200)  # growing moves everything once more
        rows = rows[::-1]
    for row, logits_V in zip(rows, step(engine, rows), strict=True):
        assert torch.allclose(logits_V, logits_of(model, row)[-1], atol=1e-4)


@pytest.mark.parametrize("heads", [2, 4])
def test_a_prompt_that_is_attended_to_in_pieces_is_read_as_a_whole(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fear: the scores of a prompt of 4,000 tokens were more than all else that a service holds."""
    config = Lfm2Config(**{**SHAPE, **NETWORKS["lfm2"], "num_key_value_heads": heads})  # type: ignore[arg-type]
    model = Lfm2ForCausalLM(config).eval()
    rows = [random_ids(random.Random(number), 20, 40) for number in range(3)]
    logits = []
    for most in (2**24, 500):
        monkeypatch.setattr(fused, "MAX_SCORES", most)
        engine = FusedEngine(model, torch.float32)
        read_in_pieces(engine, rows, random.Random(1))
        logits.append(step(engine, rows))
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.parametrize("kind", ["general", "own"])
def test_a_cleared_slot_remembers_nothing(kind: str) -> None:
    model = network("lfm2")
    engine = engine_of(kind, model)
    engine.reserve(1, 40)
    first, second = random_ids(random.Random(1), 9, 9), random_ids(random.Random(2), 5, 5)
    for row in (first, second):
        with torch.inference_mode():
            engine.cache.clear(torch.tensor([0]))
        engine.read(block([0], [row[:-1]], [0], len(row)))
        logits_V = step(engine, [row])[0]
        assert torch.allclose(logits_V, logits_of(model, row)[-1], atol=1e-4)


class Changed(LlamaForCausalLM):
    """Someone's own network, which may do anything."""


def test_networks_that_do_more_than_their_architecture_are_left_to_the_general_engine() -> None:
    for name in FUSED:
        assert isinstance(make_engine(network(name), torch.float32), FusedEngine)
    config = network("llama").config
    assert isinstance(config, LlamaConfig)
    others = [Changed(config), network("mistral"), network("gemma3_text")]
    for change in ({"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}):
        others.append(LlamaForCausalLM(LlamaConfig(**{**SHAPE, **change})))  # type: ignore[arg-type]
    for other in others:
        assert isinstance(make_engine(other, torch.float32), GeneralEngine)


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("lfm2", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 12}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_biases_norms_and_adapters_are_the_networks_own(name: str, special: JsonObject, dtype: torch.dtype) -> None:
    """Copies of the weights and the shared modules are as close to exact logits as one plain pass is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        shape = {**SHAPE, **NETWORKS[name], **special}
        exact = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **shape)).eval()
        for weight in exact.parameters():
            weight.detach().normal_(mean=float(weight.ndim == 1), std=0.2).copy_(weight.bfloat16())
        model = copy.deepcopy(exact)
        for weight in model.parameters():  # and no frequency of a rotary position
            weight.data = weight.data.to(dtype)
        rows = [random_ids(random.Random(number), 2, 30) for number in range(20)]
        for adapted in (False, True):
            if adapted:
                for tuned in (exact, model):
                    attach(tuned, LoraSettings(rank=2), tuned.get_output_embeddings())
                    for layer in adapted_layers(tuned).values():
                        layer.lora_B.detach().normal_(std=0.3, generator=torch.Generator().manual_seed(2))
            engine = make_engine(model, dtype)
            assert isinstance(engine, FusedEngine) and engine._shares is adapted
            read_in_pieces(engine, rows, random.Random(0))
            exact_BV, plain_BV = (
                torch.stack([logits_of(tuned, row)[-1].float() for row in rows]) for tuned in (exact, model)
            )
            gap = float((step(engine, rows) - exact_BV).abs().mean())
            assert gap < 1e-5 + 3 * float((plain_BV - exact_BV).abs().mean())


def test_positions_are_as_exact_in_a_bfloat16_copy_as_in_a_model_opened_in_bfloat16(tmp_path: Path) -> None:
    """Frequencies of rotary positions that are cast, too, turn far positions by radians."""
    model = network("llama")
    model.save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    row = random_ids(random.Random(0), 60, 60)
    results = []
    for engine in (GeneralEngine(model, torch.bfloat16), GeneralEngine(opened, torch.bfloat16)):
        engine.reserve(1, 64)
        engine.read(block([0], [row[:-1]], [0], 59))
        results.append(step(engine, [row]))
    assert torch.equal(results[0], results[1])


# --- several tokens between two looks of the host, as on a GPU: rows must stay what they are


def ahead(model: PreTrainedModel, stops: Sequence[str] = (), **settings: object) -> Sampler:
    """A sampler whose engine does on the CPU what it does on a GPU, but for the capture of its steps."""
    made = sampler(model, stops, **settings)
    made._engine.run_ahead = 8
    if isinstance(made._engine, FusedEngine):
        made._engine.pads = True
    return made


@pytest.mark.medium
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_rows_that_run_ahead_of_the_host_are_those_that_it_looks_at_every_token(name: str) -> None:
    """With stop strings inside the stretch, budgets that end in it, rows that wait beside others, and every slot in
    use."""
    model, stops = network(name), (*"aeiou", "0b", "\n")
    plain = converse(sampler(model, stops, max_rows=9), range(12), lengths=30)
    for settings in ({"max_rows": 9}, {"max_rows": 3, "patience": 0.0}, {"max_rows": 12, "max_tokens": 200}):
        rows = converse(ahead(model, stops, **settings), range(12), lengths=30)
        assert ids(rows) == ids(plain)
        assert {key: [turn.end for turn in turns] for key, turns in rows.items()} == {
            key: [turn.end for turn in turns] for key, turns in plain.items()
        }
        assert largest_gap(model, rows) < 1e-4
    assert {turn.end for turns in plain.values() for turn in turns} >= {TurnEnd.STOP, TurnEnd.LENGTH}


class Fetches(TorchFunctionMode):
    """Counts calls that bring a tensor to the host, which on a CPU are no operation."""

    CALLS = (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__int__)
    count = 0

    def __torch_function__(
        self, func: object, types: Sequence[type], args: tuple[object, ...] = (), kwargs: JsonObject | None = None
    ) -> object:
        assert callable(func)
        self.count += func in self.CALLS
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Counts operations for which an accelerator has to finish all that it was given, since the host needs their
    result, or its shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "repeat_interleave")

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: JsonObject | None = None
    ) -> object:
        name = func.overloadpacket.__name__
        listed = [value for given in args if isinstance(given, list) for value in given]
        by_mask = name.startswith("index") and any(getattr(value, "dtype", None) is torch.bool for value in listed)
        self.count += name in self.NAMES or by_mask
        return func(*args, **(kwargs or {}))


@pytest.mark.medium
@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_p": 0.9, "top_k": 20}])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_host_looks_at_most_once_in_eight_tokens(name: str, settings: dict[str, object]) -> None:
    engine = ahead(network(name), (), max_rows=6, **settings)
    engine._is_end[:] = False
    for key in range(6):
        engine.start(request(key, [65, 66, 67 + key % 2], max_tokens=64))
    with Waits() as waits, Fetches() as fetches:
        turns = engine.step()
    assert [len(turn.ids) for turn in turns] == [64] * 6
    assert 0 < waits.count + fetches.count <= 64 / 8
