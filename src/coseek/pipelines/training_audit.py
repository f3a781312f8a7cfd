"""Training audit: metrics and checkpoints of a training folder, and what the kept rollouts say about its metrics.

The means over a step's runs and rewards follow from its rollouts, where all of them were kept. The other numbers are
bound by the checkpoints, as far as these reach. Trained folders are bound by the runs of the table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coseek.agents.factory import content_of
from coseek.agents.unwritable import NOT_KEPT
from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.audit import Audit, Share, Violation, bound_rows, counted
from coseek.data.checkpoint_manifest import bound_metrics, wrong_checkpoint
from coseek.data.identities import KEY
from coseek.data.run import Run
from coseek.data.run_seal import chained
from coseek.data.token_data import read_token_data
from coseek.rewards.reward import Reward

_CHECKPOINT = re.compile(r"(step|checkpoint)-\d+|healthy|candidate")
NEAR = 1e-5
"""How far a mean may lie off, for its size: rows and rewards are rounded to six digits."""


def audit_training(folder: Path) -> Audit:
    """Check the metrics and checkpoints below a folder, and not the runs and labels there."""
    auditor = _Training(folder)
    violations, count = counted(auditor.violations())
    checkpoints = Share("checkpoints", auditor.checkpoints, 0, auditor.checkpoints)
    return Audit(
        auditor.rows, violations, count, False, auditor.derived, auditor.bound,
        sealed=auditor.rows == auditor.bound, of="rows of metrics", shares=(checkpoints,), left_out=auditor.left_out,
    )  # fmt: skip


@dataclass
class _Training:
    folder: Path
    rows: int = 0
    derived: int = 0
    bound: int = 0
    checkpoints: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    def violations(self) -> Iterator[Violation]:
        logs = sorted(self.folder.rglob("metrics.jsonl"))
        for path in logs:
            yield from self._log(path)
        yield from self._policies()
        known = {path.parent / "checkpoints" for path in logs}
        for path in sorted(self.folder.rglob("checkpoints")):
            if path not in known and any(_CHECKPOINT.fullmatch(one.name) for one in path.glob("*")):
                yield Violation(path, "there is no metrics.jsonl beside the checkpoints")

    def _policies(self) -> Iterator[Violation]:
        """The trained folders that are not those that the runs of the table were sampled from."""
        now: dict[str, str] = {}
        for path in sorted(self.folder.rglob("run.yaml")):
            try:
                run = Run(path.parent)
                agent, known = run.settings.get("agent"), run.record.get(KEY)
            except DataError:  # told by the audit of the run
                continue
            name = str(agent.get("name")) if isinstance(agent, dict) else ""
            if not isinstance(known, dict) or "agent" not in known or not _is_below(Path(name), self.folder):
                continue
            now.setdefault(name, content_of(name))
            if now[name] != known["agent"]:
                yield Violation(Path(name), f"its files are not those that {path.parent} was sampled from")

    def _log(self, path: Path) -> Iterator[Violation]:
        rows: list[JsonObject] = []
        chain = [""]
        step: float = 0
        for one in bound_rows(path):
            wrong = one.wrong
            if one.row is not None:
                rows.append(one.row)
                chain.append(chained(chain[-1], one.row))
                wrong = wrong or _wrong_row(one.row, step)
                step = max(step, _number(one.row.get("step")))
            if wrong:
                yield Violation(path, wrong, one.line)
        self.rows += len(rows)
        yield from self._checkpoints(path, chain)
        yield from self._rollouts(path, rows)

    def _checkpoints(self, log: Path, chain: list[str]) -> Iterator[Violation]:
        """Check the checkpoints beside a log, and the rows that they bind."""
        reach = 0
        for checkpoint in sorted((log.parent / "checkpoints").glob("*")):
            if not _CHECKPOINT.fullmatch(checkpoint.name):
                continue
            self.checkpoints += 1
            _, dash, number = checkpoint.name.rpartition("-")
            for file, what in wrong_checkpoint(checkpoint, int(number) if dash and number.isdigit() else None):
                yield Violation(file, what)
            if (bound := bound_metrics(checkpoint)) is None:
                self.left_out[str(checkpoint)] = "it binds no metrics"
                continue
            rows, digest = bound
            if not 0 <= rows < len(chain):
                yield Violation(log, f"it has {len(chain) - 1} rows, and {checkpoint.name} was made after {rows}")
            elif digest != chain[rows]:
                yield Violation(log, f"its first {rows} rows are not those before {checkpoint.name}")
            else:
                reach = max(reach, rows)
        self.bound += reach

    def _rollouts(self, log: Path, rows: list[JsonObject]) -> Iterator[Violation]:
        """Compare the rows of steps whose rollouts are kept."""
        for folder in sorted((log.parent / "rollouts").glob("step-*")):
            step = int(number) if (number := folder.name.removeprefix("step-")).isdigit() else -1
            row = next((row for row in rows if row.get("step") == step), None)
            try:
                follows = _described(Run(folder))
            except (DataError, ModuleNotFoundError) as error:  # the core has no torch
                self.left_out[str(folder)] = str(error)
                continue
            if row is None:
                yield Violation(folder, f"{log.name} has no row of step {step}")
            elif follows is None:
                self.left_out[str(folder)] = "a part of the step's rollouts was kept"
            else:
                self.derived += 1
                for name in sorted(name for name in follows if not _near(row.get(name), follows[name])):
                    what = (
                        f"{name} of step {step} is {row.get(name)}, and {follows[name]:.6g} follows from its rollouts"
                    )
                    yield Violation(log, what)


def _is_below(path: Path, folder: Path) -> bool:
    return path.is_dir() and path.resolve().is_relative_to(folder.resolve())


def _wrong_row(row: JsonObject, step: float) -> str:
    """What is wrong with a row of metrics behind one of this step."""
    for name, value in row.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and not (isinstance(value, float) and value == float(f"{value:.6g}")):
            return f"{name} is {value!r}, and no number of six digits"
    return f"step {row.get('step')} stands behind step {step}" if _number(row.get("step")) < step else ""


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else -1


def _near(value: object, follows: float) -> bool:
    margin = NEAR * max(1.0, abs(follows))
    return isinstance(value, int | float) and follows - margin <= value <= follows + margin


def _described(run: Run) -> dict[str, float] | None:
    """The metrics that follow from a step's rollouts and their rewards; `None` where not all were kept."""
    from coseek.training.rl.episodes import EpisodeBatch, ScoredEpisode, describe

    if run.settings.get("groups") != run.settings.get("groups_of_step"):
        return None
    values = read_token_data(run.folder)
    scored: list[ScoredEpisode] = []
    faults = 0
    for one in run.trajectories():
        data = values.get((one.question.id, one.seed))
        if one.format_error == NOT_KEPT or (data is not None and data.reward is None):
            return None
        if data is None or data.reward is None:
            faults += 1
            continue
        parts = {name: value for name, value in data.parts.items() if value is not None}
        scored.append(ScoredEpisode(data.group, one, Reward(data.reward, parts)))
    follows = describe(EpisodeBatch(tuple(scored), {"part": faults} if faults else {}, {}))
    return {name: value for name, value in follows.items() if not name.startswith("faults/")}
