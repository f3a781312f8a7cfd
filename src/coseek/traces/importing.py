"""Import of logs: the conversations of files as an inexact run, which can be scored, viewed and labelled."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from coseek.core.errors import DataError, SettingError
from coseek.core.files import (
    Json,
    JsonObject,
    atomic_folder,
    check_output_folder,
    is_failed_start,
    read_yaml,
    write_json,
)
from coseek.core.fingerprint import digest_of, file_digest
from coseek.core.lock import lock_beside
from coseek.core.settings import dump_settings, make_settings, merge_settings
from coseek.data.imports._sources import files_of
from coseek.data.run import Run
from coseek.traces.conversation import Conversation, ConversationReader
from coseek.traces.records import KINDS, RecordFault, RecordReader, TraceSettings, contents_of

REPORT = "source.json"
"""The file with the import summary, in the run's folder."""
PATHS = [name for name in TraceSettings.model_fields if name not in ("map", "search_tools", "query_argument")]
"""Settings that are paths into a record."""


@dataclass
class TraceReport:
    """Import summary."""

    imported: int = 0
    with_answers: int = 0
    """Number of conversations whose question has gold answers."""
    left_out: list[RecordFault] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of searches, calls without a result, conversations without an answer."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Counts of unread parts by name: blocks, items, arguments, queries; earlier questions."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """Number of calls with a result, by the tool's name as the agent wrote it."""
    search_tools: Sequence[str] = ()
    """The tools whose calls were taken as searches."""

    def to_json(self) -> JsonObject:
        counts: JsonObject = {"imported": self.imported, "with_answers": self.with_answers, **self.counts}
        left_out: list[Json] = [asdict(fault) for fault in self.left_out]
        return {**counts, "unread": {**self.unread}, "tools": {**self.tools}, "left_out": left_out}


def trace_settings(typed: Mapping[str, Json]) -> TraceSettings:
    """The typed settings over those of the file `map`. Raises `SettingError`."""
    file = typed.get("map")
    if not isinstance(file, str):
        return make_settings(TraceSettings, typed)
    mapped = read_yaml(Path(file), "mapping file")
    make_settings(TraceSettings, mapped, file)
    return make_settings(TraceSettings, merge_settings(TraceSettings, mapped, dict(typed)))


def import_traces(sources: Sequence[Path], out: Path, settings: TraceSettings | None = None) -> TraceReport:
    """Write the conversations of log files (`records`) as the run `out`, unless none can be read.

    Records that cannot be read are skipped and reported. Conversations with the same question get the seeds 0, 1, … in
    order. Raises `DataError` for a folder with other contents, and `SettingError` for a path that no record has.
    """
    settings = settings or TraceSettings()
    files = list(chain(*files_of(sources, KINDS, below=True)))
    with lock_beside(out, again=False):
        check_output_folder(out, "run.yaml")
        if (out / "run.yaml").exists() and not is_failed_start(out, "run.yaml"):
            raise DataError(f"{out} holds a run already; choose another --out")
        report = TraceReport()

        def fill(folder: Path) -> None:
            names: list[Json] = [str(path) for path in files]
            run = Run.create(folder, {"traces": names, **dump_settings(settings)})
            _read_files(files, settings, run, report)
            if not report.imported:
                reasons = "".join(f"; {fault.where}: {fault.reason}" for fault in report.left_out[:3])
                raise DataError(f"no conversation found in {', '.join(map(str, sources))}{reasons}")
            digests: JsonObject = {str(path): file_digest(path) for path in files}
            write_json(folder / REPORT, {"format": "traces", "files": digests, **report.to_json()})

        atomic_folder(out, fill)
    return report


def _read_files(files: Sequence[Path], settings: TraceSettings, run: Run, report: TraceReport) -> None:
    reader = ConversationReader(settings.search_tools, settings.query_argument)
    records = RecordReader(settings, Counter())
    seen_questions: dict[str, tuple[str, tuple[str, ...], int]] = {}
    """Question id → its text, its gold answers, and the number of conversations so far."""
    with run.open_for_append() as file:
        for path in files:
            shorter = _shorter_states(path, settings)
            for record in records.read(path):
                if isinstance(record, RecordFault):
                    report.left_out.append(record)
                    continue
                if record.where in shorter:
                    records.unread["shorter states of conversations, which a later record of the file contains"] += 1
                    continue
                ident, text, golds = record.question.id, record.question.question, record.question.answers
                previous_text, previous_golds, seed = seen_questions.get(ident, (text, golds, 0))
                if previous_text != text or (golds and previous_golds and {*golds} != {*previous_golds}):
                    other = "question" if previous_text != text else "set of gold answers"
                    reason = f"the question id {ident!r} is that of another {other}; name another field with id=PATH"
                    report.left_out.append(RecordFault(record.where, reason))
                    continue
                seen_questions[ident] = text, golds or previous_golds, seed + 1
                Run.append(file, reader.trajectory(record, seed))
                report.imported += 1
                report.with_answers += bool(record.question.answers)
    typed = (name for name in PATHS if name in settings.model_fields_set and name != "fault")  # nothing may have failed
    unused = [name for name in typed if not records.used[name]]
    if unused and report.imported + len(report.left_out):
        raise SettingError(f"no record has anything at {unused[0]}={getattr(settings, unused[0])}; check the path")
    if settings.search_tools and reader.tools and not reader.counts["searches"]:
        raise SettingError(
            f"search_tools={settings.search_tools}: no call is to such a tool, but to {', '.join(reader.tools)}"
        )
    report.counts = {"searches": 0, "calls_without_result": 0, **reader.counts}
    report.unread = {**records.unread, **reader.unread}
    report.tools = dict(reader.tools.most_common())
    report.search_tools = [name for name in report.tools if reader.is_search(name)]


def _shorter_states(path: Path, settings: TraceSettings) -> set[str]:
    """The places of the conversations that a later one of the file begins with, as in a proxy's log of calls."""
    ends: dict[str, list[str]] = {}
    shorter: set[str] = set()
    for record in RecordReader(settings, Counter()).read(path):
        if isinstance(record, Conversation) and not (record.answer or record.fault or record.stop):
            digest, contents = digest_of(record.question.question), contents_of(record.messages)
            for content in contents:
                shorter.update(ends.pop(digest, ()))
                digest = digest_of(digest, *content)
            if any(role == "assistant" for role, *_ in contents):  # else the agent did nothing, which counts
                ends.setdefault(digest, []).append(record.where)
    return shorter
