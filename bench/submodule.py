"""Stages as submodules: does a stage make the agent a better finder for a generator that it was not trained with?

    python -m bench.submodule RUN … --generators runs/generator/generator runs/other/generator [--temperatures 0 1]

Each `RUN` is a run of `coseek train agent` with stages in laptop worlds (`qagent preset=laptop`), under its own seed.
The policy before training and those that the stages left answer the test questions of both worlds, their answers are
passed over, and each generator answers from the passages that they found, and from naive RAG's. The world's oracle
judges. Printed are GenAcc, also where all gold passages were served (with few and with more passages beside them), and
the gain of the last stage over each of the others, question by question; then that gain at each number of hops, of both
worlds and all runs. What is there already is kept in `RUN/submodule`.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from coseek.agents.drivers import Agent
from coseek.agents.run_questions import run_questions
from coseek.agents.sources import served_context
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import GraderSettings, open_graders
from coseek.graders.generator import GeneratorSettings
from coseek.graders.judge import JudgeSettings
from coseek.hardware.placement import FLOAT32
from coseek.measure.intervals import Difference, paired_difference
from coseek.measure.score import QuestionScores, ScoredRun
from coseek.measure.table import show
from coseek.models.pretrained import load_model
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.table_rows import naive_rag, scored_by_generator

FEW, METRIC = 3, "gen_acc"
"""Passages served that count as few, and what is compared."""
NAIVE = "naive RAG"
"""Searches once, with the question."""
HOPS = (1, 2, 3, 4)


def answered(training: AgentTraining, policy: str, where: QuestionSet, temperature: float) -> Path:
    """The run folder of a policy on one set, or of naive RAG."""
    folder = training.folder / "submodule" / f"{where.name}.{policy}.t{temperature:g}".replace(" ", "-")
    run = Run(folder) if folder.exists() else Run.create(folder, {"policy": policy, "temperature": temperature})
    if policy == NAIVE:
        naive_rag(run, where.retriever, where.questions, FEW, seed=0)
    elif len(run.done()) < len(where.questions):
        model = load_model(training.policy_folder(policy), FLOAT32)
        agent = Agent(training.protocol, training.sampler(model, training.protocol, temperature))
        run_questions(run, agent, where.retriever, where.questions, training.recipe.limits)
    return folder


def judged(run: ScoredRun) -> dict[str, QuestionScores]:
    """By question; one whose run, generator or judge failed is left out."""
    return {ident: row for ident, row in run.questions.items() if METRIC in row.metrics}


def values_of(questions: Mapping[str, QuestionScores]) -> dict[str, float]:
    return {ident: row.metrics[METRIC] for ident, row in questions.items()}


def cells(runs: Sequence[Trajectory], values: dict[str, float]) -> list[str]:
    """GenAcc of all, and where all gold was served: of all such, with few passages, with more."""
    served = {run.question.id: served_context(run) for run in runs}
    gold = {run.question.id: set(run.question.gold_ids) for run in runs}
    whole = [ident for ident in values if gold[ident] <= {passage.id for passage in served[ident]}]
    few = [ident for ident in whole if len(served[ident]) <= FEW]
    groups = (list(values), whole, few, [ident for ident in whole if ident not in set(few)])
    means = (f"{fmean(values[ident] for ident in group):.3f} ({len(group)})" if group else "–" for group in groups)
    return [*means, f"{fmean(map(len, served.values())):.1f}", f"{fmean(len(run.searches) for run in runs):.2f}"]


def compare(folder: Path, name: str, temperature: float) -> dict[str, dict[str, QuestionScores]]:
    """Print the rows and gains of one run with one generator. Returns policy → set and question → its scores."""
    training = AgentTraining(load_recipe(str(folder / "recipe.yaml")), folder)
    policies = [NAIVE, training.compared[0], *(stage.ends for stage in training.stages)]
    settings = GraderSettings(generator=GeneratorSettings(model=name), judge=JudgeSettings(model="oracle"))
    every: dict[str, dict[str, QuestionScores]] = {policy: {} for policy in policies}
    gains = []
    for where in training.sets:
        if where.name == "dev":
            continue
        world = training.data_folder if where.name == "test" else training.folder / "unseen"
        frozen = open_graders(settings, folder / "submodule", world)
        found: list[dict[str, float]] = []
        for policy in policies:
            at = answered(training, policy, where, temperature)
            runs = list(Run(at).trajectories())
            questions = judged(scored_by_generator(frozen, policy, at, runs))
            every[policy] |= {f"{where.name}/{ident}": row for ident, row in questions.items()}
            found.append(values_of(questions))
            row = (str(folder), where.name, f"{temperature:g}", name, policy, *cells(runs, found[-1]))
            print(f"| {' | '.join(row)} |", flush=True)
        for policy, values in zip(policies[:-1], found, strict=False):
            gain = paired_difference(values, found[-1], np.random.default_rng(0))
            assert gain is not None
            gains.append(f"{where.name}, − {policy}: {show(gain.difference)}, p = {gain.p:.3f}")
    print(f"\nGenAcc of {policies[-1]}:", *gains, "", sep="\n")
    return every


def gain_of(
    seeds: Sequence[Mapping[str, Mapping[str, QuestionScores]]], metric: str, hops: Sequence[int] = HOPS
) -> Difference:
    """After − before over the questions of these numbers of hops, each averaged over the seeds."""
    values: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    for runs, run in product(seeds, values):
        for key, row in runs[run].items():
            if row.question.hops in hops and metric in row.metrics:
                values[run].setdefault(key, []).append(row.metrics[metric])
    before, after = ({key: fmean(some) for key, some in means.items()} for means in values.values())
    gain = paired_difference(before, after, np.random.default_rng(0))
    assert gain is not None
    return gain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--generators", nargs="+", required=True, help="folders that `coseek train generator` made")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="of the agent")
    given = parser.parse_args()
    head = ("run", "set", "T", "generator", "policy", "GenAcc", "all gold served", f"≤ {FEW} passages", f"> {FEW}",
            "passages", "searches")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for temperature, name in product(given.temperatures, given.generators):
        seeds = [compare(folder, name, temperature) for folder in given.runs]
        *others, last = seeds[0]
        for policy in others:
            pairs = [{"before": one[policy], "after": one[last]} for one in seeds]
            gains = (f"{hops}: {show(gain_of(pairs, METRIC, [hops]).difference)}" for hops in HOPS)
            print(f"GenAcc of {last} − {policy} by hops, T = {temperature:g}, {name}:", ", ".join(gains))


if __name__ == "__main__":
    main()
