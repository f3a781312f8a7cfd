"""Label audit: the rows of a label folder, made again from its runs, its retriever and its stored scores, and compared.

The scores themselves (of models, and of the agent's continuations) are bound by the folder's seal. One that is missing
is computed again by a model folder; a server is never asked, and a file of the user's is never run.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from coseek.agents.protocol import tool_files
from coseek.core.address import is_url
from coseek.core.errors import DataError, UserError
from coseek.core.files import Json, JsonObject, parse_row
from coseek.core.plugins import is_plugin_path
from coseek.core.registry import find_plugin
from coseek.core.settings import make_settings
from coseek.data.audit import Audit, Share, Violation, bound_rows, counted, difference
from coseek.data.run_seal import SEAL, changed_files
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import TRAJECTORY, DroppedTurn, LabelSet
from coseek.labels.maker import CONTRACT, PACKAGE, MakerModule
from coseek.labels.text_store import text_key
from coseek.pipelines.labelling import LabelSettings, label_runs
from coseek.retrieval.query import Query

R = TypeVar("R", LabelSet, DroppedTurn)
Key: TypeAlias = tuple[str, ...]
NEAR = 1e-4
"""How far two scores of one passage may lie apart, for their size: kernels add in other orders."""
AGAIN = "labels made again"
"""What may be left out of an audit."""


def audit_labels(folder: Path, retriever: str | None = None) -> Audit:
    """Check a label folder. `retriever` names the one that found its candidates, where that is no index folder: it is
    asked only then. Raises `DataError` for a folder that is none."""
    auditor = _Labels(LabelFolder(folder), retriever)
    violations, count = counted(auditor.violations())
    rows = len(auditor.sets) + len(auditor.dropped)
    bound = rows if auditor.sealed else auditor.bound
    texts = Share("texts", auditor.texts, auditor.texts, auditor.texts)
    return Audit(
        rows, violations, count, False, auditor.derived, bound, auditor.sealed,
        of="label rows", shares=(texts,), left_out=auditor.left_out,
    )  # fmt: skip


@dataclass
class _Labels:
    folder: LabelFolder
    retriever: str | None = None
    sets: dict[Key, tuple[int, JsonObject]] = field(default_factory=dict)
    """Turn and copy → line and row."""
    dropped: dict[Key, tuple[int, JsonObject]] = field(default_factory=dict)
    texts: int = 0
    derived: int = 0
    bound: int = 0
    """Rows with a digest."""
    sealed: bool = False
    left_out: dict[str, str] = field(default_factory=dict)

    def violations(self) -> Iterator[Violation]:
        """All of them, in the order of the files."""
        try:
            record = self.folder.record
        except DataError as error:
            yield Violation(self.folder.folder / "labels.yaml", str(error))
            return
        seal = record.get(SEAL)
        self.sealed = isinstance(seal, dict)
        broken = [*self._texts(), *self._rows(self.folder.sets_path, LabelSet, self.sets)]
        broken += self._rows(self.folder.dropped_path, DroppedTurn, self.dropped)
        yield from broken
        if isinstance(seal, dict):
            yield from self._seal(seal, record)
        elif self.bound:
            why = "it was stopped, or its seal was removed; --resume closes it"
            yield Violation(self.folder.folder / "labels.yaml", f"the folder was not closed: {why}")
        if broken:
            self.left_out[AGAIN] = "its files are broken"
        else:
            yield from self._again(record)

    def _texts(self) -> Iterator[Violation]:
        path = self.folder.texts.path
        for one in bound_rows(path) if path.exists() else ():
            self.texts += 1
            if one.wrong or one.row is None:
                yield Violation(path, one.wrong, one.line)
            elif one.row != {"key": text_key(str(one.row.get("text"))), "text": one.row.get("text")}:
                yield Violation(path, "the key is not the digest of the text", one.line)

    def _rows(self, path: Path, kind: type[R], found: dict[Key, tuple[int, JsonObject]]) -> Iterator[Violation]:
        for one in bound_rows(path) if path.exists() else ():
            for what in filter(None, (one.wrong, one.changed)):
                yield Violation(path, what, one.line)
            if one.row is None:
                continue
            self.bound += one.stored is not None
            try:
                row = self.folder.texts.restore(one.row)
                again: R = parse_row(row, kind.from_json, "the row")
            except UserError as error:
                yield Violation(path, str(error), one.line)
                continue
            key = (*again.turn.key, str(again.copy) if isinstance(again, LabelSet) else "")
            if (odd := difference(again.to_json(), row)) is not None:
                yield Violation(path, f"{odd} is not what this schema writes", one.line, again.turn.question_id)
            if key in found:
                yield Violation(path, f"the turn stands in line {found[key][0]}, too", one.line, key[0])
            found[key] = one.line, row

    def _seal(self, seal: JsonObject, record: JsonObject) -> Iterator[Violation]:
        folder = self.folder.folder
        try:
            changed = [*changed_files(seal, record, folder, self.folder.bound_paths)]
        except DataError as error:
            yield Violation(folder, str(error))
            return
        for name in changed:
            path = folder / ("labels.yaml" if name == "record" else name)
            yield Violation(path, "it was changed after the labels were made: its digest is another one in labels.yaml")

    # --- the same labels again

    def _again(self, record: JsonObject) -> Iterator[Violation]:
        """Make the labels anew in a folder of their own, with copies of the stored scores, and compare."""
        try:
            settings, own = _settings(record)
            if (why := _not_made_again(settings, own, self.retriever)) is not None:
                self.left_out[AGAIN] = why
                return
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch) / "labels"
                self._copy(made)
                label_runs(settings, own, made, resume=True)
                yield from self._compare(LabelFolder(made))
        except (UserError, OSError) as error:
            self.left_out[AGAIN] = str(error)

    def _copy(self, made: Path) -> None:
        made.mkdir()
        shutil.copyfile(self.folder.folder / "labels.yaml", made / "labels.yaml")
        for name in ("scores", "run"):
            if (self.folder.folder / name).is_dir():
                shutil.copytree(self.folder.folder / name, made / name)

    def _compare(self, made: LabelFolder) -> Iterator[Violation]:
        again = _Labels(made)
        yield from again._rows(made.sets_path, LabelSet, again.sets)
        yield from again._rows(made.dropped_path, DroppedTurn, again.dropped)
        for path, ours, theirs in (
            (self.folder.sets_path, again.sets, self.sets),
            (self.folder.dropped_path, again.dropped, self.dropped),
        ):
            for key in {**theirs, **ours}:
                self.derived += key in theirs
                line, row = theirs.get(key, (None, None))
                if row is None or key not in ours:
                    what = "no such row follows" if row is not None else f"the row of search {key[2]} is missing"
                    yield Violation(path, f"{what} from the runs, the retriever and the scores", line, key[0])
                elif (odd := difference(_rounded(_as_old_as(row, ours[key][1]), row), row)) is not None:
                    yield Violation(
                        path, f"{odd} does not follow from the runs, the retriever and the scores", line, key[0]
                    )


def _settings(record: JsonObject) -> tuple[LabelSettings, JsonObject]:
    """The settings of `coseek label`, and the method's own. Raises `UserError`."""
    tree = record.get("settings")
    named = dict(tree) if isinstance(tree, dict) else {}
    if "runs" not in named:
        raise DataError("those of a co-training are not")
    own = named.pop(str(named.get("method")), {})
    return make_settings(LabelSettings, named), own if isinstance(own, dict) else {}


def _not_made_again(settings: LabelSettings, own: JsonObject, retriever: str | None) -> str | None:
    """Why these labels are not made again; `None` if they are. Raises `UserError`."""
    if is_plugin_path(settings.method):
        return f"the method {settings.method} is a file of the user's, which is not run"
    module = cast(MakerModule, find_plugin("method", PACKAGE, settings.method, CONTRACT))
    terms = module.terms(make_settings(module.SETTINGS, own))
    names = [settings.retriever] if settings.retriever != retriever else []
    names += [settings.scorer] if terms.scorer and settings.scorer else []
    names += [settings.likelihood] if terms.likelihood and settings.likelihood else []
    agent = settings.agent if terms.answers or terms.rolls_out else None
    names += [agent.name, *map(str, tool_files(agent.protocol))] if agent is not None else []
    for name in names:
        if is_url(name) or name.endswith((".yaml", ".yml")):
            return f"{name} may be a server, which is not asked unnamed"
        if is_plugin_path(name):
            return f"{name} is a file of the user's, which is not run"
    return None


def _as_old_as(row: JsonObject, ours: JsonObject) -> JsonObject:
    """Our row without the digest of its trajectory, and without the turns of its history, where the stored row is older
    than these."""
    kept = {name: value for name, value in ours.items() if name != TRAJECTORY or name in row}
    stored = row.get("query")
    if isinstance(stored, dict) and not any(search.same_turn for search in Query.from_json(stored).history):
        made = Query.from_json(cast(JsonObject, ours["query"]))
        history = tuple(replace(search, same_turn=False) for search in made.history)
        kept["query"] = replace(made, history=history).to_json()
    return kept


def _rounded(ours: Json, theirs: Json) -> Json:
    """Our value with numbers that differ by a rounding replaced by theirs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: _rounded(value, theirs.get(name)) for name, value in ours.items()}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_rounded(one, other) for one, other in zip(ours, theirs, strict=True)]
    if isinstance(ours, float) and isinstance(theirs, float) and abs(ours - theirs) <= NEAR * max(1.0, abs(ours)):
        return theirs
    return ours
