"""The road to the papers' experiments: memory and time of each by the estimates of `--dry-run`. Nothing is trained.

    python -m bench.road

Time is an upper bound of the arithmetic: every run takes all its turns. Searches, frozen models and evaluations are
left out. The settings, machines and shares of the peak speed (MFU) are those of the recipes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coseek.measure.table import Table
from coseek.pipelines.agent_recipe import RECIPES, AgentRecipe, MachineSettings, load_recipe
from coseek.pipelines.estimate import memory_of, shape_of, work_of
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.training.encoder.recipe import load_retriever_recipe
from coseek.training.trainer.activations import GIB

PAPERS = tuple(
    path.stem for path in sorted(RECIPES.glob("*.yaml"))
    if (RECIPES / f"{path.stem}-laptop.yaml").exists()
)  # fmt: skip
"""The recipes of papers: those with a laptop version."""
ROUNDS = 2
"""Rounds of Agentic-R (paper 000, section 4.2)."""
DR_SYNTH = 5238
"""Training instances of AgentIR (paper 003, section 4)."""
QWEN3_EMBEDDING = 4.0e9
"""Weights of AgentIR's encoder."""
ONE_GPU = ("machine.devices=1", "rl.policy.workers=ddp", "cache_gib=16", "rl.questions_per_step=64", "rl.steps=200")
"""What fits a published recipe to one device: no shards, a smaller cache, 64 questions a step instead of 512."""
LORA = "rl.policy.lora={rank: 16, alpha: 32}"
SMALLER: dict[str, Sequence[str]] = {
    "1.5 B, LoRA": ("policy.folder=models/Qwen2.5-1.5B", LORA),
    "3 B": ("policy.folder=models/Qwen2.5-3B",),
    "7 B, LoRA": (LORA,),
}
"""Policies that one device holds."""
H100 = MachineSettings(memory_gib=80, tflops=989, update_mfu=0.35)
HEADER = ("experiment", "devices, TFLOP/s", "GiB a device", "rollout + update, s", "steps", "hours", "device-hours")


@dataclass(frozen=True, slots=True)
class Row:
    """One training on the machine that its recipe names."""

    name: str
    machine: MachineSettings
    gib: float | None
    step: str
    steps: int
    hours: float

    @property
    def cells(self) -> tuple[str, ...]:
        devices = self.machine.devices
        gib = "–" if self.gib is None else f"{self.gib:.0f} of {self.machine.memory_gib:.0f}"
        worked = f"{self.hours:.1f}", f"{self.hours * devices:.0f}"
        return self.name, f"{devices} × {self.machine.tflops:.0f}", gib, self.step, str(self.steps), *worked


def agent_row(name: str, recipe: AgentRecipe, rounds: int = 1) -> Row:
    """An agent's training, `rounds` times."""
    shape, _ = shape_of(recipe)
    work = work_of(recipe, shape)
    step = f"{work.rollout_s:.0f} + {work.update_s:.0f}"
    gib = memory_of(recipe, shape).needed / GIB
    return Row(name, recipe.machine, gib, step, rounds * work.steps, rounds * work.total_s / 3600)


def retriever_row() -> Row:
    """AgentIR's encoder: 3 passes over full-length texts, and one more that recomputes them; attention is left out."""
    recipe = load_retriever_recipe("agentir", labels=["labels"])
    passages = 1 + (recipe.loss.negatives or 0)
    texts = (recipe.query_tokens or 0) + passages * (recipe.passage_tokens or 0)
    epochs, batch = recipe.training.epochs, recipe.training.batch_size
    seconds = DR_SYNTH * epochs * texts * 8 * QWEN3_EMBEDDING / (H100.tflops * 1e12 * H100.update_mfu)
    steps = round(DR_SYNTH * epochs / batch)
    return Row("agentir (retriever)", H100, None, f"{seconds / steps:.0f}", steps, seconds / 3600)


def rows() -> Iterator[Row]:
    """Search-R1 on one device, the papers' agents, and the trainings that alternate with a retriever's."""
    for size, settings in SMALLER.items():
        yield agent_row(f"search-r1-grpo, {size}", load_recipe("search-r1-grpo", [*ONE_GPU, *settings]))
    for name in PAPERS:
        recipe = load_recipe(name)
        if recipe.learn == "rl":
            for stage in recipe.stages or ("",):
                yield agent_row(f"{name} {stage}".strip(), recipe.stage(stage) if stage else recipe)
    yield agent_row("agentic-r (agent)", load_together_recipe("agentic-r").agent, ROUNDS)
    yield retriever_row()


if __name__ == "__main__":
    print(Table(HEADER, tuple(row.cells for row in rows())).markdown())
