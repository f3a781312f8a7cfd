"""Trials: find the kind of a part's file, and try the part on a tiny example (`coseek check`)."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import cast

from coseek.agents import factory, protocol, tool
from coseek.agents.drivers import Agent, rollout
from coseek.agents.search_turns import search_turns
from coseek.core.errors import SettingError, missing_extras
from coseek.core.files import Json, JsonObject, expand_home, read_yaml
from coseek.core.plugins import PluginSpec, is_plugin_path, load_plugin, running
from coseek.core.settings import dump_settings, make_settings
from coseek.core.text import as_written
from coseek.data import imports
from coseek.data.dataset import Dataset
from coseek.data.imports._sources import ImportedData
from coseek.data.maker import WorldGroup, world_maker
from coseek.data.question import Question
from coseek.data.trajectory import PROMPT, Author, Segment, StopReason, Trajectory
from coseek.labels import maker
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_run import RunSettings, run_agent
from coseek.pipelines.labelling import label_runs, label_settings
from coseek.retrieval import factory as retrieval, views
from coseek.retrieval.index import build_index
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever
from coseek.rewards import reward
from coseek.training import tracker
from coseek.training.rl import algorithm, policy_loss
from coseek.training.rl.settings import RlSettings

RUNS = 12
"""Questions that a trial runs."""
EXAMPLE = "EXAMPLE"
"""Name in a part's file of the input for a trial: a tool's arguments, or the text of a file in a data format."""


@dataclass(frozen=True, slots=True)
class PartTrial:
    """The kind of a part's file, and the result of its trial."""

    kind: str
    found: tuple[str, ...]
    """Lines about the trial."""
    use: str
    """The command that uses it."""


@dataclass(frozen=True)
class Bench:
    """A tiny world, its index and a few runs, made on first use."""

    folder: Path

    @cached_property
    def questions(self) -> list[Question]:
        return Dataset(self.world_path).questions("train")

    @cached_property
    def world_path(self) -> Path:
        """The folder of the world."""
        world_maker().make(WorldGroup(size="tiny", train=RUNS, dev=0, test=0)).save(self.folder / "world")
        return self.folder / "world"

    @cached_property
    def index(self) -> Retriever:
        return build_index(self.world_path, "bm25", self.folder / "index")

    @property
    def index_path(self) -> Path:
        """The folder of the index."""
        _ = self.index
        return self.folder / "index"

    def roll_out(self, agent: Agent) -> list[Trajectory]:
        return rollout(agent, self.index, self.questions, [0] * RUNS, factory.limits_of(agent))

    @cached_property
    def expert_trajectories(self) -> list[Trajectory]:
        """Runs with deliberate mistakes, so that rewards differ."""
        return self.roll_out(factory.open_agent(factory.settings_for("faulty-expert")))


def check_part(path: str | Path) -> PartTrial:
    """Find the kind of a part's file, check its contract, and try it on a tiny example (`coseek check`).

    Raises `SettingError` or `DataError` with the problem and its line.
    """
    name = expand_home(str(path))
    if not Path(name).is_file():
        raise SettingError(f"there is no file {name}; make one with `coseek new PART NAME`")
    if not (is_plugin_path(name) or name.endswith((".yaml", ".yml"))):
        raise SettingError(f"a part is a .py or a .yaml file, not {name}")
    kind = python_kind(name) if is_plugin_path(name) else yaml_kind(name)
    with TemporaryDirectory() as folder, running(kind, name), missing_extras(f"trying a {kind}"):
        lines = tuple(KINDS[kind].trial(name, Bench(Path(folder))))
    return PartTrial(kind, lines, KINDS[kind].use.format(quote(name)))


def python_kind(name: str) -> str:
    """The first kind whose contract a file fulfils. Else raises for the kind with the fewest missing names."""
    contracts = {kind: spec.contract for kind, spec in KINDS.items() if spec.contract}
    module = load_plugin("part", name, {})
    for kind, contract in contracts.items():
        with suppress(SettingError):
            load_plugin(kind, name, contract)
            return kind
    near = [kind for kind, contract in contracts.items() if any(hasattr(module, needed) for needed in contract)]
    if not near:
        contract_list = "; ".join(f"{kind}: {', '.join(contract)}" for kind, contract in contracts.items())
        raise SettingError(f"{name} defines none of the names of a part. They are, by kind: {contract_list}")
    kind = min(near, key=lambda kind: sum(not hasattr(module, needed) for needed in contracts[kind]))
    load_plugin(kind, name, contracts[kind])
    return kind


def yaml_kind(name: str) -> str:
    """The kind of a YAML file, by its names; without any of them, a recipe."""
    tree = read_yaml(Path(name), "part")
    return next((kind for kind, spec in KINDS.items() if spec.mark and spec.mark in tree), "recipe")


def try_reward(name: str, bench: Bench) -> Iterator[str]:
    function = reward.make_reward({name: 1.0})
    if needs := sorted({str(need) for term in function.parts for need in term.needs}):
        yield f"needs {', '.join(needs)} of a grader, which a trial has not: see `graders` of a recipe"
        return
    results = [(trajectory, function.compute(trajectory)) for trajectory in bench.expert_trajectories]
    rewards = [(trajectory, value.value) for trajectory, value in results if isinstance(value, reward.Reward)]
    values = [value for _, value in rewards]
    low, mean, high = min(values), sum(values) / len(values), max(values)
    yield f"{len(values)} runs of a script with mistakes: mean {mean:.3f}, from {low:.3f} to {high:.3f}"
    if low == high:
        yield "all runs are paid the same, so this part alone teaches nothing here"
    trajectory, value = rewards[0]
    yield f"{as_written(trajectory.question.question)} → {as_written(trajectory.answer or 'no answer')}: {value}"


def try_algorithm(name: str, bench: Bench) -> Iterator[str]:
    import torch

    rewards_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    mask_BT = torch.tensor([[False, True, True], [False, True, False]] * 3)
    instance = algorithm.open_algorithm(RlSettings(algorithm=name))
    step = algorithm.StepRewards(
        rewards_B,
        torch.zeros(mask_BT.shape),
        mask_BT,
        groups=((0, 1, 2), (3, 4, 5)),
        group_size=3,
        zero_std_B=torch.tensor([False] * 3 + [True] * 3),
        values_BT=torch.zeros(mask_BT.shape) if instance.needs_critic else None,
        trajectories=tuple(_of_two_lengths(row) for row in range(6)),
        rewards_of_turns=((),) * 6,
    )
    advantages_BT = instance.advantages(step).advantages_BT
    for rows, rewards in (((0, 1, 2), "1, 0, 0"), ((3, 4, 5), "1, 1, 1")):
        advantages = ", ".join(f"{float(advantages_BT[row][1]):.3f}" for row in rows)
        yield f"rewards {rewards} of one question → advantages {advantages}"


def try_policy_loss(name: str, bench: Bench) -> Iterator[str]:
    import torch

    loss = policy_loss.open_policy_loss(RlSettings(policy_loss=name))
    ratios, mask_bt = (0.5, 1.0, 2.0), torch.ones(1, 3).bool()
    for advantage in (1.0, -1.0):
        new_bt = torch.tensor([ratios]).log().requires_grad_()
        advantages_bt = torch.full((1, 3), advantage)
        losses_bt = loss(policy_loss.LossBatch(new_bt, torch.zeros(1, 3), advantages_bt, mask_bt, 0.2, 0.2))
        losses_bt.sum().backward()
        assert new_bt.grad is not None
        pairs = zip(ratios, losses_bt[0].tolist(), new_bt.grad[0].tolist(), strict=True)
        losses = "; ".join(f"{ratio:g}: {loss:.3f}, {gradient:.3f}" for ratio, loss, gradient in pairs)
        yield f"advantage {advantage:g}, ratio: loss, gradient: {losses}"


def _of_two_lengths(row: int) -> Trajectory:
    """A run of one turn: two tokens, or one and an observation."""
    agent = Segment(Author.AGENT, "answer", "", (1, 2)[: 2 - row % 2], (0.0, 0.0)[: 2 - row % 2])
    prompt = Segment(Author.ENVIRONMENT, PROMPT, "", (0,))
    observation = [Segment(Author.ENVIRONMENT, "information", "", (3,))] if row % 2 else []
    return Trajectory(Question("q", "?", ("a",)), "trial", (prompt, agent, *observation), (), StopReason.ANSWERED, "a")


def try_label_method(name: str, bench: Bench) -> Iterator[str]:
    module = cast(maker.MakerModule, load_plugin("label method", name, maker.CONTRACT))
    needs = module.terms(module.SETTINGS())
    if needs.likelihood or needs.rolls_out:
        yield "needs a model, which a trial has not; its names and settings are right"
        return
    index, expert = str(bench.index_path), factory.settings_for("expert")
    tree: dict[str, object] = {"questions": str(bench.world_path), "split": "train", "retriever": index}
    tree |= {"agent": dump_settings(expert), "limits": dump_settings(factory.limits_for(expert))}
    run_folder = bench.folder / "run"
    run_agent(make_settings(RunSettings, tree), run_folder, resume=False)
    options: JsonObject = {"method": name, "scorer": "gold" if needs.scorer else None}
    chosen, method_settings = label_settings([str(run_folder)], {}, options, index)
    summary = label_runs(chosen, method_settings, bench.folder / "labels")
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
    yield f"{summary.turns} searches of a script: {summary.labelled} with a label, {summary.sets} label sets" + (
        f"; without: {reasons}" if reasons else ""
    )


def try_tool(name: str, bench: Bench) -> Iterator[str]:
    instance = tool.open_tool("mine", {"tool": str(Path(name).absolute())}, run_files=True)
    assert instance is not None
    arguments = getattr(instance.module, EXAMPLE, None)
    if not isinstance(arguments, dict):
        yield f"its names are right; define {EXAMPLE} = {{…}}, the arguments of a call, to see it run"
        return
    agent = factory.open_agent(factory.settings_for("rules"))
    parts = tool.ToolContext(bench.index, factory.limits_of(agent), agent.protocol.template, agent.model.tokenizer)
    parsed = instance.parse(cast(JsonObject, arguments))
    if parsed.call is None or parsed.call.fault:
        raise SettingError(
            f"{name} does not take its own {EXAMPLE}: {parsed.problem or getattr(parsed.call, 'fault', '')}"
        )
    question = bench.questions[0].question
    (result,) = instance.run([tool.ToolRequest(parsed.call.arguments, 1, Query("", question))], parts)
    output = instance.render(result, parts) if not isinstance(result, tool.ToolFault) else result
    if isinstance(output, tool.ToolFault):
        raise SettingError(f"{name} failed on its own {EXAMPLE}: {output.message}")
    yield f"{json.dumps(arguments, ensure_ascii=False)} → {agent.model.tokenizer.decode(output).strip()}"


def try_retriever(name: str, bench: Bench) -> Iterator[str]:
    module = load_plugin("retriever", name, retrieval.CONTRACT)
    tree: dict[str, object] = {"retriever": str(Path(name).absolute())}
    fields = module.SETTINGS.model_fields
    settings: dict[str, object] = {"over": str(bench.index_path), "parts": [str(bench.index_path)] * 2}
    tree |= {key: value for key, value in settings.items() if key in fields}
    yield from searched(retrieval.open_retriever(tree), bench)


def searched(retriever: Retriever, bench: Bench) -> Iterator[str]:
    """Search two questions for three passages."""
    queries = [question.question for question in bench.questions[:2]]
    hit_lists = retriever.search(queries, 3)
    yield f"identity {str(retriever.identity)[:12]}…; searched for: {retriever.seen(queries[0])}"
    for rank, hit in enumerate(hit_lists[0], start=1):
        yield f"{rank}  {hit.score:.3f}  {hit.passage.title.strip()}"


def try_view(name: str, bench: Bench) -> Iterator[str]:
    trajectory = next((run for run in bench.expert_trajectories if len(run.searches) > 1), bench.expert_trajectories[0])
    turns = list(search_turns(trajectory, protocol.load_protocol(trajectory.protocol)))
    yield f"the query: {turns[-1].query.text.strip()}"
    yield f"is searched as: {views.render_view(views.load_view(name), turns[-1].query)}"


def try_protocol(name: str, bench: Bench) -> Iterator[str]:
    grammar = protocol.load_protocol(name).grammar
    if not grammar.free_text:
        tag = f"counts as {grammar.thought.opening}" if grammar.thought else "needs no tag and is no fault of form"
        yield f"reasoning in a model's own marks, such as [THINK], {tag}"
    yield from transcript(bench, factory.settings_for("rules", protocol=name))


def transcript(bench: Bench, settings: factory.AgentSettings) -> Iterator[str]:
    """Counts of an agent's trajectories, and the text of the first."""
    trajectories = bench.roll_out(factory.open_agent(settings))
    answered_count = sum(trajectory.answer is not None for trajectory in trajectories)
    valid_count = sum(trajectory.valid for trajectory in trajectories)
    searches = sum(len(trajectory.searches) for trajectory in trajectories) / len(trajectories)
    yield f"{len(trajectories)} runs: {answered_count} answered, {valid_count} valid, {searches:.1f} searches each"
    for segment in trajectories[0].segments:
        text = " ".join(segment.text.split())
        yield f"{segment.author}: {text if len(text) < 200 else text[:200] + ' …'}"


def try_template(name: str, bench: Bench) -> Iterator[str]:
    agent = factory.open_agent(factory.settings_for("rules", prompt_template=name))
    (trajectory, *_) = bench.roll_out(agent)
    yield from trajectory.segments[0].text.strip().splitlines()
    observations = (segment.text.strip() for segment in trajectory.segments[1:] if segment.author != "agent")
    yield from next(observations, "").splitlines()[:6]


def try_recipe(name: str, bench: Bench) -> Iterator[str]:
    tree = read_yaml(Path(name), "recipe")
    recipe = load_recipe(name)
    yield recipe.about or "a recipe"
    yield from (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in tree.items() if key != "about")


def try_format(name: str, bench: Bench) -> Iterator[str]:
    module = load_plugin("data format", name, imports.CONTRACT)
    text = getattr(module, EXAMPLE, None)
    if not isinstance(text, str):
        yield f"its names are right; define {EXAMPLE} = '…', the text of a file, to see it read"
        return
    source = bench.folder / "example.txt"
    source.write_text(text, encoding="utf-8")
    imported = module.read([source])
    if not isinstance(imported, ImportedData):
        raise SettingError(f"{name} returns an ImportedData, not {type(imported).__name__}; mend it")
    passages = list(imported.passages)
    ids = {passage.id for passage in passages}
    yield f"{len(passages)} passages, {len(imported.questions)} questions"
    for question in imported.questions[:3]:
        if missing_ids := set(question.gold_ids) - ids:
            raise SettingError(
                f"question {question.id!r} names gold passages that were not read: {', '.join(sorted(missing_ids))}"
            )
        yield f"{question.question} → {', '.join(question.answers)}"


def try_tracker(name: str, bench: Bench) -> Iterator[str]:
    config: dict[str, Json] = {}
    run = tracker.TrackedRun("trial/rl", "0" * 32, Path("rl"), bench.folder / "store", config, None)
    instance = tracker.find_tracker(name)(run)
    instance.send(1, {"reward": 0.5})
    instance.close()
    files = [path for path in bench.folder.rglob("*") if path.is_file() and "store" in path.parts]
    yield "one row was sent" + (f", into {', '.join(sorted(path.name for path in files))}" if files else "")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of part."""

    trial: Callable[[str, Bench], Iterator[str]]
    """Tries a file and yields lines about the trial."""
    use: str
    """The command that uses it."""
    contract: PluginSpec | None = None
    """The names that its Python file must define; `None`: it is a YAML file."""
    mark: str = ""
    """A name in its YAML file."""


KINDS: Mapping[str, Kind] = {
    "reward": Kind(
        try_reward, "coseek train agent quickstart 'reward={{exact_match: 1.0, {0}: 0.1}}' --dry-run", reward.CONTRACT
    ),
    "algorithm": Kind(try_algorithm, "coseek train agent quickstart rl.algorithm={0} --dry-run", algorithm.CONTRACT),
    "policy loss": Kind(
        try_policy_loss, "coseek train agent quickstart rl.policy_loss={0} --dry-run", policy_loss.CONTRACT
    ),
    "label method": Kind(try_label_method, "coseek label RUN --method {0} --out labels/mine", maker.CONTRACT),
    "tool": Kind(try_tool, "in a protocol file: tools: {{mine: {{tool: {0}}}}}", tool.CONTRACT),
    "retriever": Kind(
        try_retriever,
        "in a YAML file: {{retriever: {0}, over: INDEX}}; then coseek search FILE.yaml 'a question'",
        retrieval.CONTRACT,
    ),
    "query view": Kind(try_view, "coseek index DATA --out indexes/mine view={0}", views.CONTRACT),
    "scripted agent": Kind(
        lambda name, bench: transcript(bench, factory.settings_for(name)),
        "coseek run DATA --split test --agent {0} --retriever INDEX --out runs/mine",
        factory.CONTRACT,
    ),
    "data format": Kind(try_format, "coseek data import {0} SOURCE… --out DIR", imports.CONTRACT),
    "tracker": Kind(try_tracker, "coseek train agent quickstart 'track=[{0}]' --dry-run", tracker.CONTRACT),
    "protocol": Kind(
        try_protocol,
        "coseek run DATA --split test --agent AGENT --protocol {0} --retriever INDEX --out runs/mine",
        mark="tags",
    ),
    "retriever file": Kind(
        lambda name, bench: searched(retrieval.open_retriever(name), bench),
        "coseek search {0} 'a question'",
        mark="retriever",
    ),
    "prompt template": Kind(
        try_template,
        "coseek run DATA --split test --agent AGENT --prompt-template {0} --retriever INDEX --out runs/mine",
        mark="prompt",
    ),
    "recipe": Kind(try_recipe, "coseek train agent {0} --dry-run"),
}
"""The kinds of parts. Of two whose names a file defines, the first counts."""
