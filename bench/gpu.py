"""Tokens a second of rollouts and updates on one GPU, at the sizes of Qwen2.5 0.5 B and 1.5 B with random weights.

    python bench/gpu.py                          # on a machine with a GPU, nothing to download
    python bench/gpu.py --checkpointing --lora   # what these two cost and save
    python bench/gpu.py --device cpu --tiny      # does it run at all

Rollouts: the sampler beside `generate` of transformers on a copy of the same weights in the same precision, same
prompts, same number of new tokens, in turn. Updates: one GRPO update of the rows as they are after a rollout (forward,
backward, AdamW). Utilisation is model floating-point operations (three forward passes an update; recomputed layers are
not counted) over what the machine reaches in a large matrix product, which is measured first, or `--peak-tflops`.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from coseek.data.question import Question
from coseek.models.model import EpisodeState, Request
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.training.rl.losses import policy_loss
from coseek.training.trainer.batch import Batch
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings, LoraSettings

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden": 896, "inner": 4864, "layers": 24, "heads": 14, "kv_heads": 2, "vocabulary": 151_936},
    "1.5B": {"hidden": 1536, "inner": 8960, "layers": 28, "heads": 12, "kv_heads": 2, "vocabulary": 151_936},
}
"""As published with the models."""
TINY: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 64, "inner": 128, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 512}
}


@dataclass(frozen=True)
class Load:
    """What is written and learnt from."""

    rows: int
    prompt: int
    new: int

    @property
    def length(self) -> int:
        return self.prompt + self.new


def make_model(size: dict[str, int], device: torch.device) -> PreTrainedModel:
    """A Qwen2.5 of this size with random float32 weights."""
    config = Qwen2Config(
        vocab_size=size["vocabulary"],
        hidden_size=size["hidden"],
        intermediate_size=size["inner"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(config)
    model.eval()
    return model


def forward_flops(model: PreTrainedModel, size: dict[str, int], load: Load) -> float:
    """Of one forward pass over the rows: 2 a weight and token, causal attention, the output layer where needed."""
    body = sum(
        weight.numel() for name, weight in model.named_parameters() if "embed" not in name and "lora_" not in name
    )
    attention = 2.0 * size["layers"] * size["hidden"] * load.length
    head = 2.0 * size["vocabulary"] * size["hidden"]
    return load.rows * (load.length * (2.0 * body + attention) + load.new * head)


def timed(work: Callable[[], int], device: torch.device) -> float:
    """Tokens a second."""
    _settle(device)
    began = time.perf_counter()
    tokens = work()
    _settle(device)
    return tokens / (time.perf_counter() - began)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_tflops(device: torch.device, side: int) -> float:
    """What the machine reaches in a bfloat16 matrix product of this size."""
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))

    def work() -> int:
        for _ in range(20):
            left @ right
        return 20

    work()
    return timed(work, device) * 2.0 * side**3 / 1e12


def prompts_of(load: Load, vocabulary: int) -> torch.Tensor:
    return torch.randint(300, vocabulary, (load.rows, load.prompt), generator=torch.Generator().manual_seed(1))


def sample(sampler: Sampler, prompts: torch.Tensor, load: Load) -> int:
    """Tokens that the sampler wrote."""
    seen = EpisodeState(Question("q", "?"))
    for row, ids in enumerate(prompts.tolist()):
        sampler.start(Request(row, tuple(ids), seed=row, max_tokens=load.new, state=seen))
    written, left = 0, load.rows
    while left:
        for turn in sampler.step():
            written, left = written + len(turn.ids), left - 1
            sampler.close(turn.key)
    return written


@torch.inference_mode()
def generate(model: PreTrainedModel, prompts: torch.Tensor, load: Load) -> int:
    """Tokens that `generate` wrote."""
    ids = prompts.to(model.device)
    written = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=load.new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return int((written.shape[1] - load.prompt) * load.rows)


def update(policy: Policy, batch: Batch) -> int:
    """Tokens of the rows that one update has learnt from."""

    def loss(new_bt: torch.Tensor, rows_b: torch.Tensor) -> torch.Tensor:
        mask_bt = batch.agent_BT[rows_b, : new_bt.shape[1]].to(new_bt.device)
        signs_bt = (1.0 - 2.0 * (rows_b % 2).to(new_bt.device))[:, None].expand_as(new_bt)
        return policy_loss(new_bt, new_bt.detach(), signs_bt, mask_bt).sum() / batch.agent_BT.sum()

    policy.forward_backward(batch, batch.agent_BT, loss)
    policy.optim_step()
    return int(batch.lengths_B.sum())


def batch_of(prompts: torch.Tensor, load: Load, vocabulary: int) -> Batch:
    written = torch.randint(300, vocabulary, (load.rows, load.new), generator=torch.Generator().manual_seed(2))
    ids_BT = torch.cat((prompts, written), dim=1)
    agent_BT = (torch.arange(load.length) >= load.prompt).expand(load.rows, -1)
    return Batch(ids_BT, agent_BT, torch.zeros(ids_BT.shape), torch.full((load.rows,), load.length))


def measure(name: str, size: dict[str, int], load: Load, options: argparse.Namespace, peak: float) -> None:
    """One size of model: each way in turn, then a line for each."""
    device = torch.device(options.device)
    model = make_model(size, device)
    settings = LearnerSettings(
        precision="bfloat16",
        micro_batch_tokens=options.micro_batch_tokens,
        checkpointing=options.checkpointing,
        lora=LoraSettings() if options.lora else None,
    )
    prompts = prompts_of(load, size["vocabulary"])
    batch = batch_of(prompts, load, size["vocabulary"])
    plain = copy.deepcopy(model).bfloat16()
    policy = Policy(model, settings, updates=10_000)
    sampler = Sampler(model, ByteTokenizer(), (), SamplerSettings(dtype="bfloat16", max_rows=load.rows))
    ways = {
        "rollout, sampler": partial(sample, sampler, prompts, load),
        "rollout, generate": partial(generate, plain, prompts, load),
        "update": partial(update, policy, batch),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(options.repeats + 1):
        for way, work in ways.items():
            rate = timed(work, device)
            if repeat:  # the first round warms up
                rates[way].append(rate)
    weights = sum(weight.numel() for weight in plain.parameters())
    print(f"\n{name}: {weights / 1e6:.0f} M weights, {load.rows} rows of {load.prompt} + {load.new} tokens")
    for way, found in rates.items():
        print(f"  {way:<20}{statistics.median(found):12,.0f} tokens/s  ({min(found):,.0f} – {max(found):,.0f})", end="")
        if way == "update":
            each = 3.0 * forward_flops(model, size, load) / (load.rows * load.length)
            done = statistics.median(found) * each / 1e12
            print(f"  {done:.2f} TFLOP/s, utilisation {done / peak:.1%}", end="")
        print()
    ratio = statistics.median(rates["rollout, sampler"]) / statistics.median(rates["rollout, generate"])
    print(f"  sampler / generate: {ratio:.2f}")
    if device.type == "cuda":
        print(f"  most memory held: {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")
        torch.cuda.reset_peak_memory_stats(device)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one small model and a short load: does it run at all")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, default=0.0, help="what utilisation is a share of; measured if 0")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use here; try --device cpu --tiny")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"
    peak = options.peak_tflops or matmul_tflops(device, 8192 if device.type == "cuda" else 512)
    print(f"{name}, torch {torch.__version__}, bfloat16, {options.repeats} repeats in turn")
    print(f"a large matrix product: {peak:.2f} TFLOP/s")
    load = Load(8, 16, 8) if options.tiny else Load(options.rows, options.prompt, options.new)
    for size, shape in (TINY if options.tiny else SIZES).items():
        measure(size, shape, load, options, peak)


if __name__ == "__main__":
    main()
