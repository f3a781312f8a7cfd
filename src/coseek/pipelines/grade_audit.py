"""Grade audit: the answers and verdicts beside a run, held against its trajectories. No model is asked.

From the text that a generator wrote follows its answer, and from the run its prompt, passages and count of tokens; from
a judge's text follows its verdict, and from a laptop world the verdict of its oracle. The text itself is bound by the
digest of its line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from coseek.agents.served_context import served_context
from coseek.core.errors import DataError, UserError
from coseek.core.files import WRONG_SHAPE, JsonObject
from coseek.core.settings import Settings, make_settings
from coseek.data.audit import Finding, Share, Violation, bound_rows, difference
from coseek.data.grade_cache import SCHEMA, GeneratedAnswer, GradeCache, GradeEntry, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator, GeneratorSettings, ReadingInput, load_generator_prompt
from coseek.graders.grading import generated_answer
from coseek.graders.judge import Claim, JudgeSettings, ModelJudge, OracleJudge, is_world, load_judge_prompt
from coseek.models.shipped import model_path
from coseek.models.tokenizer import HfTokenizer
from coseek.world.oracle import Oracle

E = TypeVar("E", bound=GradeEntry)
S = TypeVar("S", bound=Settings)
Again: TypeAlias = Callable[[E, Trajectory], E]
"""(entry, its trajectory) → the entry that follows from the text that the model wrote."""


@dataclass
class GradeFile(Generic[E]):
    """A grade file, whatever is wrong with it."""

    path: Path
    kind: type[E]
    identity: str = ""
    card: JsonObject = field(default_factory=dict)
    entries: dict[str, list[tuple[int, E]]] = field(default_factory=dict)
    """By question, with their lines."""
    met: set[int] = field(default_factory=set)
    """Lines whose trajectory has been seen."""
    again: "Again[E] | None" = None
    bound: int = 0
    derived: int = 0
    wrong: list[Violation] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, kind: type[E]) -> "GradeFile[E]":
        """Read a file. What is wrong with its lines is kept."""
        file, headed = cls(path, kind), False
        for one in bound_rows(path):
            for what in filter(None, (one.wrong, one.changed)):
                file.tell(one.line, what)
            if one.row is not None and one.line == 1:
                headed = one.stored is not None
                file._head(one.row)
            elif one.row is not None:
                file.bound += one.stored is not None
                if headed and one.stored is None:
                    file.tell(one.line, "it has no digest, and the first line has one")
                file._entry(one.line, one.row)
        return file

    def tell(self, line: int, what: str, question: str | None = None) -> None:
        self.wrong.append(Violation(self.path, what, line, question))

    def _head(self, row: JsonObject) -> None:
        by = row.get("by")
        self.identity, self.card = str(row.get("identity")), by if isinstance(by, dict) else {}
        name = GradeCache.beside(self.path.parent, self.kind, self.identity, {}).path.name
        if row.get("schema") != SCHEMA or name != self.path.name or not isinstance(by, dict):
            self.tell(1, f"it is not the first line of a file of this name and schema {SCHEMA}")

    def _entry(self, line: int, row: JsonObject) -> None:
        try:
            entry = self.kind.from_json(row)
        except WRONG_SHAPE:
            self.tell(line, "not an entry of this file")
            return
        if (odd := difference(entry.to_json(), row)) is not None:
            self.tell(line, f"{odd} is not what this schema writes")
        else:
            self.entries.setdefault(entry.key[0], []).append((line, entry))

    def compare(self, line: int, entry: E, run: Trajectory) -> None:
        """Compare an entry with what follows from its text and a trajectory of its question, once. A fault follows from
        nothing."""
        if line in self.met:
            return
        self.met.add(line)
        if self.again is None or entry.fault is not None:
            return
        self.derived += 1
        if (odd := difference(self.again(entry, run).to_json(), entry.to_json())) is not None:
            self.tell(line, f"{odd} does not follow from the text that the model wrote, and the run", run.question.id)

    def share(self, of: str) -> Share:
        return Share(of, sum(map(len, self.entries.values())), self.derived, self.bound)


class GradeFiles:
    """All grade files of a run. Implements `RunCheck`."""

    def __init__(self, folder: Path, left_out: dict[str, str]) -> None:
        """`left_out` is told which entries cannot be worked out again, and why."""
        self.answers = [GradeFile.read(path, GeneratedAnswer) for path in sorted(folder.glob("reply.*.jsonl"))]
        self.verdicts = [GradeFile.read(path, Verdict) for path in sorted(folder.glob("verdict.*.jsonl"))]
        for answers in self.answers:
            answers.again = _opened(answers, _answers_again, left_out)
        for verdicts in self.verdicts:
            verdicts.again = _opened(verdicts, _verdicts_again, left_out)
        files = (one for file in self.answers for rows in file.entries.values() for _, one in rows)
        self._responses = {(one.question_id, one.answer) for one in files}

    def findings(self, trajectory: Trajectory) -> Iterator[Finding]:
        """Compare the entries of a trajectory. What is wrong with them is told in the end, with their lines."""
        ident = trajectory.question.id
        self._responses.add((ident, trajectory.answer))
        for answers in self.answers:
            for line, answer in answers.entries.get(ident, ()):
                if answer.seed == trajectory.seed:
                    answers.compare(line, answer, trajectory)
        for verdicts in self.verdicts:
            for line, verdict in verdicts.entries.get(ident, ()):
                verdicts.compare(line, verdict, trajectory)
        yield from ()

    def rest(self) -> Iterator[Violation]:
        for answers in self.answers:
            yield from _all_wrong(answers)
        for verdicts in self.verdicts:
            for ident, rows in verdicts.entries.items():
                for line, verdict in rows:
                    if (ident, verdict.response) not in self._responses:
                        verdicts.tell(line, "nobody gave this response in the run", ident)
            yield from _all_wrong(verdicts)

    def shares(self) -> Iterator[Share]:
        yield from (file.share(f"answers of {file.path.name}") for file in self.answers)
        yield from (file.share(f"verdicts of {file.path.name}") for file in self.verdicts)


def _all_wrong(file: GradeFile[E]) -> Iterator[Violation]:
    for ident, rows in file.entries.items():
        for line, _ in rows:
            if line not in file.met:
                file.tell(line, "the run holds no such trajectory", ident)
    yield from file.wrong


def _opened(
    file: GradeFile[E], open_it: "Callable[[GradeFile[E]], Again[E]]", left_out: dict[str, str]
) -> "Again[E] | None":
    """How the entries of a file follow from its texts, if what its first line names is still there."""
    try:
        return open_it(file)
    except (UserError, OSError, ValueError) as error:
        left_out[file.path.name] = str(error)
        return None


@dataclass(frozen=True)
class _Silent:
    """Stands for the model, which is not asked."""

    identity: str

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        raise AssertionError("an audit asks no model")


def _answers_again(file: GradeFile[GeneratedAnswer]) -> Again[GeneratedAnswer]:
    settings = _settings(file, GeneratorSettings)
    tokenizer = HfTokenizer.load(model_path(settings.counted_by)) if settings.counted_by else None
    model = _Silent(str(file.card.get("model_identity")))
    generator = Generator(model, load_generator_prompt(settings), settings, tokenizer)
    _check(file, generator.identity)

    def again(entry: GeneratedAnswer, run: Trajectory) -> GeneratedAnswer:
        context = generator.context(ReadingInput(run.question.question, tuple(served_context(run))))
        return generated_answer(run.question.id, run.seed, context, generator.read(entry.text))

    return again


def _verdicts_again(file: GradeFile[Verdict]) -> Again[Verdict]:
    if "oracle" in file.card:
        source = str(file.card["oracle"])
        if not is_world(source):
            raise DataError(f"the world {source} of its oracle is no longer there")
        oracle = OracleJudge(Oracle.load(Path(source).expanduser()), source)
        _check(file, oracle.identity)
        return lambda entry, run: _as_old(entry, oracle.judge([Claim(run.question, entry.response)])[0])
    settings = _settings(file, JudgeSettings)
    judge = ModelJudge(_Silent(str(file.card.get("model_identity"))), load_judge_prompt(settings), settings)
    _check(file, judge.identity)
    return lambda entry, run: _as_old(entry, judge.read(Claim(run.question, entry.response), entry.text))


def _as_old(entry: Verdict, again: Verdict) -> Verdict:
    """A verdict without the digest of its claim, where the entry is older than that."""
    return again if entry.asked else replace(again, asked="")


def _settings(file: GradeFile[E], kind: type[S]) -> S:
    return make_settings(kind, {name: value for name, value in file.card.items() if name in kind.model_fields})


def _check(file: GradeFile[E], identity: str) -> None:
    if identity != file.identity:
        raise DataError("its prompt, world or tokenizer has changed since")
