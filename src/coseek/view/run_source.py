"""Run source: a run to show, with the reward of its training, its grades and its labels; and the curves of trainings.

A folder is a run (`run.yaml`) or a training, which has runs in `table`, `pairs` and `rollouts`, and a curve in each
`metrics.jsonl`. An unfinished run is read to its last complete line. No code of a folder is executed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from coseek.agents.factory import decoder_of
from coseek.agents.protocol import stored_protocol
from coseek.agents.search_turns import replay_queries
from coseek.core.errors import CoseekError, UserError
from coseek.core.files import Json, JsonObject, parse_line, parse_row, read_jsonl, read_yaml
from coseek.core.plugins import is_plugin_path
from coseek.core.strict_json import replace_surrogates
from coseek.core.text import as_written
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.passage import Passage
from coseek.data.run import RowKey, Run
from coseek.data.trajectory import Search, Trajectory
from coseek.labels.answer_correctness import GAC
from coseek.labels.label_folder import LabelFolder, Score
from coseek.labels.label_set import LabelSet
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import find_view, render_view
from coseek.rewards.reward import RewardFunction, RewardValue, make_reward, preset_names

# Other index: the ranks at which another retriever finds the passages of a search.
#
# An imported log has its own ids, and may have truncated a passage or put its title into its text. So passages are
# compared by id and by words: the same id with different words is another passage, and the same words are the same
# passage.

DEPTH = 100
"""Number of passages to retrieve; passages beyond have no rank."""
_LEAST_WORDS = 5
"""Minimum number of words to recognise a part of a passage; fewer may be in several passages."""


@dataclass(frozen=True)
class OtherIndex:
    """A retriever, with its name on the page."""

    name: str
    retriever: Retriever

    @classmethod
    def open(cls, source: str) -> "OtherIndex":
        """Open an index folder, a URL or a YAML file. Raises `UserError` for anything else."""
        return cls(Path(source).name or source, open_retriever(source))

    def ranks(self, searches: Sequence[Search], queries: Sequence[QueryLike]) -> list[list[int | None]]:
        """For each search, the rank of each of its hits in this index, from 1; 0 beyond `DEPTH`; `None` for a hit
        without text and with an unknown id, which may be a passage under another id. `queries` are those of the
        searches. Raises `RetrieverError`."""
        lists = self.retriever.search(queries, DEPTH) if queries else []
        ranked = ([_PassageWords.of(hit.passage) for hit in hits] for hits in lists)
        pairs = zip(searches, ranked, strict=True)
        return [[_rank(_PassageWords.of(hit.passage), passages) for hit in search.hits] for search, passages in pairs]


@dataclass(frozen=True, slots=True)
class _PassageWords:
    """The id and the words of a passage, for comparison."""

    ident: str
    text: str
    """The words of the text, a blank before each."""
    whole: str
    """The words of title and text."""

    @classmethod
    def of(cls, passage: Passage) -> "_PassageWords":
        title, text = ("".join(f" {word}" for word in words(part)) for part in (passage.title, passage.text))
        return cls(passage.id, text, title + text)

    def is_like(self, other: "_PassageWords") -> bool:
        """Whether the longer text has half of the words of the shorter one, or one of them is empty."""
        ours, theirs = set(self.whole.split()), set(other.whole.split())
        return 2 * len(ours & theirs) >= min(len(ours), len(theirs))

    def has_same_words(self, other: "_PassageWords") -> bool:
        """Whether the texts are equal, or one contains the other: a log may truncate a text, even inside a word."""
        if not self.whole or not other.whole:
            return False
        pairs = ((self.text, other.whole), (other.text, self.whole), (self.whole, other.whole))
        return self.whole == other.whole or any(
            part.count(" ") >= _LEAST_WORDS and part in whole for part, whole in pairs
        )


def _rank(hit: _PassageWords, passages: Sequence[_PassageWords]) -> int | None:
    for is_same in (lambda other: other.ident == hit.ident and other.is_like(hit), hit.has_same_words):
        for rank, other in enumerate(passages, start=1):
            if is_same(other):
                return rank
    return 0 if hit.whole else None


RUNS_OF_TRAINING = (
    "table/*/run.yaml", "pairs/*/run.yaml", "rl/rollouts/*/run.yaml", "rl/*/rollouts/*/run.yaml",
)  # fmt: skip
WARM_START, EVALUATED = "warm-start", "eval/"
Labels: TypeAlias = dict[RowKey, list[JsonObject]]
"""Question id and seed → the labels of the episode's searches, as the page shows them."""
E = TypeVar("E", GeneratedAnswer, Verdict, Score)


@dataclass(frozen=True)
class Curves:
    """The metrics of one stage of a training."""

    run: str
    stage: str
    """The folder of the metrics, relative to the run; empty for the run itself."""
    columns: dict[str, list[Json]]
    """Name → values, all of one length; `None` for a step that did not log the metric."""


@dataclass(frozen=True)
class RunSource:
    """A run to show."""

    name: str
    folder: Path
    reward: RewardFunction | None = None
    labels: Labels = field(default_factory=dict)
    others: tuple[OtherIndex, ...] = ()
    """Retrievers whose ranks are shown beside those of the run's searches."""

    def trajectories(self) -> Iterator[Trajectory]:
        """The stored trajectories up to the last complete line, since another process may be writing."""
        path = Run(self.folder).trajectories_path
        for number, line in enumerate(whole_lines(path), start=1):
            location = f"{path}, line {number}"
            yield parse_row(parse_line(line, location), Trajectory.from_json, location)

    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """The function that decodes the run's token ids; `None` if its tokenizer cannot be opened."""
        try:
            return decoder_of(Run(self.folder))
        except (CoseekError, ImportError):
            return None

    def rendered_queries(self) -> Callable[[Trajectory], list[str]] | None:
        """The function from a trajectory to the texts that its index searched for, before truncation by an encoder;
        `None` if they are the queries themselves, and if the retriever, view or protocol is unknown here."""
        card, protocol = (run := Run(self.folder)).settings.get("index"), stored_protocol(run)
        settings = card.get("settings") if isinstance(card, dict) else None
        view = settings.get("view") if isinstance(settings, dict) else None
        if not (isinstance(card, dict) and isinstance(view, str)) or view == "query" or protocol is None:
            return None
        is_bare = card.get("retriever") == "bm25"
        try:
            find_view(view)
        except UserError:
            return None
        return lambda run: [render_view(view, query, bare=is_bare) for query in replay_queries(run, protocol)]

    def other_ranks(self) -> Callable[[Trajectory], dict[str, list[list[int | None]]]] | None:
        """The function from a trajectory to the ranks of its hits in each other index, by name (`OtherIndex.ranks`).
        An index receives what its view reads, or only the query if the run's protocol is unknown. `None` without other
        indexes."""
        protocol = stored_protocol(Run(self.folder))

        def ranks(trajectory: Trajectory) -> dict[str, list[list[int | None]]]:
            queries: Sequence[QueryLike] = [search.query for search in trajectory.searches]
            if protocol is not None:
                queries = replay_queries(trajectory, protocol)
            return {other.name: other.ranks(trajectory.searches, queries) for other in self.others}

        return ranks if self.others else None

    def grades(self) -> tuple[dict[RowKey, list[JsonObject]], dict[str, list[JsonObject]]]:
        """Generators' answers by question id and seed, and judges' verdicts by question id."""
        answers: dict[RowKey, list[JsonObject]] = {}
        verdicts: dict[str, list[JsonObject]] = {}
        for path in sorted(self.folder.glob("reply.*.jsonl")):
            for answer in _grade_entries(path, GeneratedAnswer):
                answers.setdefault((answer.question_id, answer.seed), []).append(answer.to_json())
        for path in sorted(self.folder.glob("verdict.*.jsonl")):
            for verdict in _grade_entries(path, Verdict):
                verdicts.setdefault(verdict.question_id, []).append(verdict.to_json())
        return answers, verdicts


def open_sources(
    folders: Sequence[Path], labels: Path | None = None, others: Sequence[OtherIndex] = ()
) -> tuple[list[RunSource], list[Curves]]:
    """The runs and curves of folders; `others` are shown beside the runs' own ranks. Raises `DataError` for a folder
    without runs and curves."""
    labels_by_row = {} if labels is None else labels_of(labels)
    runs: list[RunSource] = []
    curves: list[Curves] = []
    for folder, name in zip(folders, short_names(folders), strict=True):
        if (folder / "run.yaml").exists():
            run_folders, reward = [folder], None
        else:
            run_folders = [path.parent for pattern in RUNS_OF_TRAINING for path in sorted(folder.glob(pattern))]
            reward = reward_of(folder)
        paths = sorted(folder.rglob("metrics.jsonl"))
        if not run_folders and not paths:
            Run(folder)  # raises, and says what the folder is instead
        for run_folder in run_folders:
            run_name = "/".join(filter(None, (name, _relative_name(folder, run_folder))))
            runs.append(RunSource(run_name, run_folder, reward, labels_by_row, (*others,)))
        curves += with_step_0([curves_of(name, _relative_name(folder, path.parent), path) for path in paths])
    return runs, [stage for stage in curves if stage.columns]


def short_names(folders: Sequence[Path]) -> list[str]:
    """The name of each folder, or its path if two folders have the same name."""
    names = [folder.resolve().name for folder in folders]
    pairs = zip(folders, names, strict=True)
    return [replace_surrogates(name if names.count(name) == 1 else str(folder)) for folder, name in pairs]


def reward_of(training: Path) -> RewardFunction | None:
    """The reward of a training's recipe; `None` without one, if it needs graders or a stage has another one, and for
    one with the user's own parts, whose code must not run here."""
    path = training / "recipe.yaml"
    recipe = read_yaml(path, "recipe").get("recipe") if path.exists() else None
    spec, stages = (recipe.get("reward"), recipe.get("stages")) if isinstance(recipe, dict) else (None, None)
    if not isinstance(spec, dict) or any(map(is_plugin_path, spec)):
        return None
    staged = isinstance(stages, dict) and any("reward" in cast(JsonObject, stage) for stage in stages.values())
    if staged or spec.get("preset") not in (None, *preset_names()):
        return None
    try:
        reward = make_reward(cast("Mapping[str, RewardValue]", spec))
        return None if reward.needs else reward
    except UserError:  # a recipe of another version
        return None


def curves_of(run: str, stage: str, path: Path) -> Curves:
    """Read the numbers of a `metrics.jsonl`."""
    rows = [parse_line(line, f"{path}, line {number}") for number, line in enumerate(whole_lines(path), start=1)]
    names = dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, int | float))
    return Curves(run, stage, {key: [row.get(key) for row in rows] for key in names})


def with_step_0(curves: Sequence[Curves]) -> list[Curves]:
    """Prepend the last evaluation of the warm start to the curves of reinforcement learning, which continues from its
    policy."""
    warm_starts = [stage.columns for stage in curves if stage.stage.startswith(WARM_START)]
    rows = [{name: values[-1] for name, values in start.items() if name.startswith(EVALUATED)} for start in warm_starts]
    evaluations = [end for end in rows if any(value is not None for value in end.values())]
    return [_from_step_0(stage, evaluations[-1]) if evaluations and stage.stage == "rl" else stage for stage in curves]


def _from_step_0(stage: Curves, evaluation: Mapping[str, Json]) -> Curves:
    first: dict[str, Json] = {"step": 0, **evaluation}
    is_measured = any(value is not None and name in stage.columns for name, value in evaluation.items())
    if not is_measured or 0 in stage.columns.get("step", [0]):
        return stage
    return replace(stage, columns={name: [first.get(name), *values] for name, values in stage.columns.items()})


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete, non-blank lines of a JSONL file; none if the file is missing."""
    if path.exists():
        with path.open("rb") as lines:
            yield from (line for line in lines if line.endswith(b"\n") and line.strip())


def labels_of(folder: Path) -> Labels:
    """Read the labels of each search in a label folder."""
    labels = LabelFolder(folder)
    rows: Labels = {}
    for label in labels.sets():
        rows.setdefault((label.turn.question_id, label.turn.seed), []).append(_label_json(label))
    for lost in labels.dropped():
        dropped: JsonObject = {"search": lost.turn.search, "dropped": lost.reason, "detail": lost.detail}
        rows.setdefault((lost.turn.question_id, lost.turn.seed), []).append(dropped)
    for path in sorted((folder / "scores").glob(f"{GAC}.*.jsonl")):
        for score in _grade_entries(path, Score):
            # A continuation of the run with this passage as the only result of the search. A fault has no `right`.
            branch: JsonObject = {"id": score.passage_id, "ended": score.fault or score.detail}
            branch |= {} if score.value is None else {"right": score.value == 1.0}
            for row in rows.get((score.turn.question_id, score.turn.seed), ()):
                if row["search"] == score.turn.search:
                    cast("list[Json]", row.setdefault("branches", [])).append(branch)
    return rows


def _label_json(label: LabelSet) -> JsonObject:
    sides = {label.positive: "positive", **dict.fromkeys(label.negatives, "negative")}
    candidates: list[Json] = [
        {
            "id": candidate.passage.id, "title": as_written(candidate.passage.title), "rank": candidate.rank,
            "scores": dict(candidate.scores), "side": sides.get(candidate.passage.id, ""),
        }
        for candidate in label.candidates
    ]  # fmt: skip
    return {"search": label.turn.search, "query": label.query.text, "candidates": candidates}


def _relative_name(folder: Path, subfolder: Path) -> str:
    name = subfolder.relative_to(folder).as_posix()
    return "" if name == "." else replace_surrogates(name)


def _grade_entries(path: Path, kind: type[E]) -> Iterable[E]:
    first = next(read_jsonl(path), None)
    return () if first is None else GradeCache(path, kind, str(first[1].get("identity")), {}).entries().values()
