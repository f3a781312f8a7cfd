"""Dry run of a co-training: that of its agent, and what the labels, the retriever and the index of a round take.

Counts are upper bounds: every run makes all its searches, and every search is labelled. A label method that asks only
where an answer can change a label asks less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coseek.core.connections import is_url
from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_json
from coseek.graders.judge import is_world
from coseek.labels.resources import GOLD, ORACLE
from coseek.measure.table import Table
from coseek.models.model_folder import model_path, shape_of_config
from coseek.pipelines.dry_run import DryRun, dry_run
from coseek.pipelines.estimate import encoder_memory, shape_of_folder, shown_gib
from coseek.pipelines.together_recipe import TogetherRecipe, check_labels, own_settings, terms_of
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.trainer.settings import GIB

FULL_TEXT = 512
"""Assumed tokens of a text where neither recipe nor encoder limits it."""


@dataclass(frozen=True, slots=True)
class RoundWork:
    """Upper bounds of what one round asks for its labels."""

    runs: int
    searches: int
    """Searches of these runs, each a label set at most."""
    candidates: int
    scorer_calls: int
    continuations: int
    """Runs that the agent continues from a candidate."""


@dataclass(frozen=True, slots=True)
class TogetherDryRun:
    """The findings of a dry run."""

    recipe: TogetherRecipe
    agent: DryRun
    work: RoundWork
    scorer: float | None
    """Bytes of a local scorer in each process; 0 for a server or an oracle, and without a scorer; `None` for a model of
    unknown shape."""
    encoder: dict[str, float]
    """Bytes of the retriever's training; empty where its encoder is not there."""
    problems: tuple[str, ...] = ()
    """What is wrong with retriever 0 and with the labels' models."""

    def refuse(self) -> None:
        """Raise `DataError` when something is missing."""
        missing = [f"{problem} (agent.{named.setting})" for named, problem in self.agent.missing]
        if listed := [*missing, *self.problems]:
            raise DataError(f"the recipe cannot be trained yet: {'; '.join(listed)}")

    def tables(self) -> Iterator[Table]:
        """The agent's findings, then those of a round."""
        yield self.agent.table()
        recipe, work = self.recipe, self.work
        scorer = "no local model"
        if self.scorer is None:
            scorer = "a local model of unknown size"
        elif self.scorer:
            scorer = f"{shown_gib(self.scorer)} GiB in each process that labels"
        parts = ", ".join(f"{name} {shown_gib(value)}" for name, value in self.encoder.items())
        needed = f"{shown_gib(sum(self.encoder.values()))} GiB at most" if self.encoder else "unknown"
        rows = (
            ("runs to label", f"{work.runs:,} a round", f"{recipe.labels.questions:,} questions, at most"),
            ("searches", f"{work.searches:,} a round", f"{work.candidates} candidates each"),
            ("scorer calls", f"{work.scorer_calls:,} a round", f"{recipe.labels.scorer or 'no scorer'}: {scorer}"),
            ("continued runs", f"{work.continuations:,} a round", "of the agent, from single candidates"),
            ("retriever", needed, parts or "its encoder is not there, or is made by the training"),
            ("rounds", f"{recipe.rounds}", f"labels by {recipe.labels.method}; each trains agent and retriever"),
        )
        note = "Upper bounds. The time of labels and of the index is left out."
        yield Table(("a round", "what", "detail"), rows, (note,))

    def to_json(self) -> JsonObject:
        work = self.work
        return {
            "agent": self.agent.to_json(),
            "rounds": self.recipe.rounds,
            "labels": {
                "runs": work.runs, "searches": work.searches, "candidates": work.candidates,
                "scorer_calls": work.scorer_calls, "continuations": work.continuations,
                "scorer_gib": None if self.scorer is None else self.scorer / GIB,
            },
            "retriever": {
                **{f"{name}_gib": value / GIB for name, value in self.encoder.items()},
                "needed_gib": sum(self.encoder.values()) / GIB if self.encoder else None,
            },
            "problems": [*self.problems],
        }  # fmt: skip


def together_dry_run(recipe: TogetherRecipe) -> TogetherDryRun:
    """Make a dry run. What is missing is reported, not raised: see `TogetherDryRun.refuse`."""
    agent = dry_run(recipe.agent)
    encoder: dict[str, float] = {}
    problems: list[str] = []
    try:
        encoder = _encoder_memory(recipe)
    except DataError as error:
        problems.append(str(error))
    try:
        check_labels(recipe)
    except DataError as error:
        problems.append(str(error))
    return TogetherDryRun(recipe, agent, work_of(recipe), _scorer_bytes(recipe), encoder, tuple(problems))


def work_of(recipe: TogetherRecipe) -> RoundWork:
    """Upper bounds of one round's labels."""
    labels, own, terms = recipe.labels, own_settings(recipe.labels).model_dump(), terms_of(recipe.labels)
    opens = recipe.agent.load_protocol(run_files=False).opens_with_search
    runs = labels.questions * labels.samples
    searches = runs * (recipe.agent.limits.max_turns + opens)
    candidates = int(own.get("candidates") or own.get("depth") or recipe.agent.limits.passages_per_search)
    windows = -(-candidates // int(own.get("window") or candidates))
    scored = terms.scorer and labels.scorer is not None
    continued = candidates if own.get("gac") else 0
    return RoundWork(runs, searches, candidates, searches * windows if scored else 0, searches * continued)


def _scorer_bytes(recipe: TogetherRecipe) -> float | None:
    """Bytes of a local scorer's weights; `None` for a model of unknown shape."""
    name = recipe.labels.scorer
    if (
        name is None
        or is_url(name)
        or name in (ORACLE, GOLD)
        or is_world(Path(name))
        or name.endswith((".yaml", ".yml"))
    ):
        return 0.0
    try:
        return 2.0 * shape_of_folder(model_path(name))[0].parameters
    except DataError:
        return None


def _encoder_memory(recipe: TogetherRecipe) -> dict[str, float]:
    """Bytes of the retriever's training from its encoder's files. Empty for an encoder that the training makes."""
    if recipe.start.encoder is None:
        return {}
    folder: Path = encoder_folder(recipe.start.encoder)
    shape = shape_of_config(read_json(folder / "config.json", foreign=True))
    # An encoder of the BERT kind has two matrices in its feed-forward part, where `Shape` counts three.
    own = recipe.retriever
    read = own.query_tokens or FULL_TEXT, own.passage_tokens or FULL_TEXT
    return encoder_memory(own, shape, shape.parameters, *read)
