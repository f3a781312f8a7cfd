"""The import of documents: every format, hostile and broken files, ids and neighbours."""

import gzip
import io
import json
import random
import re
import tarfile
from collections import Counter
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest
from tests.data.document_files import BROKEN, GOOD, zipped
from tokenizers import Tokenizer

from coseek.core.errors import DataError, MissingExtra, SettingError
from coseek.data.corpus_file import CorpusFile
from coseek.data.imports import ImportSummary, import_data
from coseek.data.passage import Passage
from coseek.models.model_folder import model_path

pytestmark = pytest.mark.medium

TEXT = """The heron waits in shallow water. It stands for hours without a move, and then it strikes.

It eats small fish. In winter it also takes mice and frogs from the wet meadows behind the dike.

Its nest of sticks lies high in an old tree. The birds come back in February, and both parents feed three or four young.
"""


def imported(folder: Path, out: Path, **settings: object) -> tuple[list[Passage], ImportSummary]:
    made = import_data("documents", [folder], out, settings=settings)
    return list(CorpusFile.scan(out / "corpus.jsonl")), made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of documents, `in`."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def unread(made: ImportSummary) -> dict[str, str]:
    """Path → outcome and first reason."""
    rows = cast(list[dict[str, str | list[str]]], made.report["unread"])
    reasons = {str(row["path"]): f"{row['outcome']}: {row['reasons'][0]}" for row in rows}
    assert len(reasons) == len(rows), "a file is reported twice"
    return reasons


@pytest.mark.slow
def test_a_file_of_each_format_keeps_its_words_and_a_broken_one_is_reported(folder: Path, tmp_path: Path) -> None:
    for suffix, path in GOOD.items():
        (folder / f"good.{suffix}").write_bytes(path.read_bytes())
        (folder / f"bad.{suffix}").write_bytes(BROKEN[suffix])
    passages, made = imported(folder, tmp_path / "out")
    assert {*unread(made)} == {f"in/bad.{suffix}" for suffix in GOOD}
    for suffix in GOOD:
        own = [passage for passage in passages if passage.meta["path"] == f"in/good.{suffix}"]
        word_counts = Counter(re.findall(r"\w+", " ".join(f"{passage.title} {passage.text}" for passage in own)))
        assert not Counter(re.findall(r"\w+", TEXT)) - word_counts, suffix


def mail(subject: str, text: str, *attached: tuple[str, bytes]) -> bytes:
    made = EmailMessage()
    made["From"], made["Subject"], made["Date"] = "Ada <ada@example.org>", subject, "Fri, 02 Jan 2026 10:00:00 +0000"
    made.set_content(text)
    for name, data in attached:
        made.add_attachment(data, "application", "octet-stream", filename=name)
    return made.as_bytes()


def test_a_mailbox_gives_its_mails_and_their_attachments(folder: Path, tmp_path: Path) -> None:
    mails = [mail("Héron", "It waits.\nFrom afar."), mail("Two", "See file.", ("../../notes.md", b"# Notes\n\nfish"))]
    box = b"".join(b"From a@b Fri Jan  2\n" + mail.replace(b"\nFrom afar", b"\n>From afar") + b"\n\n" for mail in mails)
    (folder / "box.mbox").write_bytes(box)
    passages, made = imported(folder, tmp_path / "out")
    assert [(passage.title, passage.meta["path"]) for passage in passages] == [
        ("Héron", "in/box.mbox/1.eml"),
        ("Two", "in/box.mbox/2.eml"),
        ("Notes", "in/box.mbox/2.eml/1-.._.._notes.md"),
    ]
    assert "From afar" in passages[0].text
    assert passages[0].meta["date"] == "2026-01-02T10:00:00+00:00"
    assert not unread(made)


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for info, data in members:
            info.size = len(data) if info.isfile() else 0
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def link(name: str, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, to
    return info


def test_an_archive_reads_nothing_outside_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    evil = [(tarfile.TarInfo(name), b"evil words") for name in ("../../evil.txt", "/etc/evil.txt")]
    good = (tarfile.TarInfo("good.txt"), b"good words")
    (folder / "a.tgz").write_bytes(tarred(*evil, (link("passwd.txt", "/etc/passwd"), b""), good))
    files = {"..\\evil.txt": b"evil", "c:/evil.txt": b"evil", "sub/good.txt": b"more words"}
    (folder / "b.zip").write_bytes(zipped(files))
    (folder / "link.txt").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    before = sorted(tmp_path.rglob("*"))
    passages, made = imported(folder, tmp_path / "out")
    paths = [passage.meta["path"] for passage in passages]
    assert paths == ["in/a.tgz/evil.txt", "in/a.tgz/etc/evil.txt", "in/a.tgz/good.txt", "in/b.zip/evil.txt",
                     "in/b.zip/c:/evil.txt", "in/b.zip/sub/good.txt"]  # fmt: skip
    reasons = unread(made)
    assert len(reasons) == 3 and all("a link" in why for why in reasons.values())
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "out")) == before


def test_two_documents_of_one_name_keep_their_kind(tmp_path: Path) -> None:
    given = []
    for parent in ("one", "two"):
        for name, data in (("r.md", b"# Heron\n\nIt waits."), ("words.txt.gz", gzip.compress(b"words"))):
            (tmp_path / parent / name).parent.mkdir(exist_ok=True)
            (tmp_path / parent / name).write_bytes(data)
            given.append(tmp_path / parent / name)
        (tmp_path / parent / "v1.2").mkdir()
        (tmp_path / parent / "v1.2" / "r.md").write_text("# Stork\n\nIt nests.")
        given.append(tmp_path / parent / "v1.2")
    made = import_data("documents", given, tmp_path / "out")
    passages = list(CorpusFile.scan(tmp_path / "out" / "corpus.jsonl"))
    assert [passage.meta["path"] for passage in passages] == [
        "r.md", "words.txt.gz/words.txt", "v1.2/r.md", "r 2.md", "words 2.txt.gz/words 2.txt", "v1.2 2/r.md",
    ]  # fmt: skip
    assert passages[3].title == passages[0].title == "Heron" and not unread(made)


def test_python_files_among_the_documents_are_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docutils", "lxml", "sitecustomize", "json", "coseek"):
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w').write(__name__)")
    (tmp_path / "a.rst").write_text("words")
    monkeypatch.chdir(tmp_path)
    import_data("documents", [Path()], tmp_path / "out")
    assert not (tmp_path / "was-run").exists()


def nested(data: bytes, depth: int) -> bytes:
    for _ in range(depth):
        data = zipped({"inner.zip": data})
    return data


ROOT_ALONE = b"%PDF-1.7\n1 0 obj << /Type /Catalog /Pages 1 0 R >> endobj\ntrailer << /Root 1 0 R >>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"max_archive_mb": 1}, {
            "a.zip": (zipped({f"{n}.txt": b"herons fly " * 36_000 for n in range(3)}), "more than 1 MB"),
        }),
        ({"max_file_mb": 1}, {
            "a.txt.gz": (gzip.compress(b"x " * 600_000), "larger than 1 MB"),
            "a.txt": (b"words " * 200_000, "larger than 1 MB"),
        }),
        ({}, {
            "a.zip": (nested(zipped({"a.txt": b"deep"}), 4), "nested more than 3 deep"),
            "b.zip": (zipped({"a.txt": b"words" * 50})[:-30], "no whole zip archive"),
            "a.tgz": (tarred((tarfile.TarInfo("a.txt"), random.Random(0).randbytes(50_000)))[:-9000], "no whole tar"),
            "a.mbox": (b"no mailbox", "no mailbox"),
            "a.html": (b"<html><script>only a script</script>", "no text in it"),
            "a.pdf": (ROOT_ALONE, "failed"),
            "a.txt": (b" \n \n", "no text in it"),
            "a.csv": (b"a,b\n", "no text in it"),
        }),
    ],
)  # fmt: skip
def test_bombs_and_broken_or_empty_files_are_refused_and_the_rest_is_read(
    folder: Path, tmp_path: Path, settings: dict[str, object], files: dict[str, tuple[bytes, str]]
) -> None:
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    (folder / "z.txt").write_text("the last file")
    passages, made = imported(folder, tmp_path / "out", **settings)
    assert passages[-1].text == "the last file"
    for name, (_, reason) in files.items():
        assert any(reason in why and path.startswith(f"in/{name}") for path, why in unread(made).items()), name


@pytest.mark.slow
def test_a_reader_that_hangs_is_stopped_and_the_rest_of_its_archive_is_read(tmp_path: Path) -> None:
    slow = b"title,text\n" + b"a,b c d e f\n" * 300_000
    (tmp_path / "a.zip").write_bytes(zipped({"1.csv": slow, "2.txt": b"behind it"}))
    made = import_data("documents", [tmp_path / "a.zip"], tmp_path / "out", settings={"seconds": 1})
    texts = [passage.text for passage in CorpusFile.scan(tmp_path / "out" / "corpus.jsonl")]
    assert texts[-1] == "behind it"
    assert "longer than 1 second" in unread(made)["a.zip/1.csv"]


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.md").write_text(text)
    return path


def test_a_change_in_one_document_leaves_the_ids_of_all_others(tmp_path: Path) -> None:
    long = "# One\n\nfirst words\n\n# Two\n\nsecond words\n\n# Two\n\nsecond words"
    folder = folder_of(tmp_path / "in", a=long, b="other words", c="other words")
    before, _ = imported(folder, tmp_path / "out", size=5)
    assert len({passage.id for passage in before}) == 5
    folder_of(folder, a=long.replace("first", "new"), aa="an added file")
    after, _ = imported(folder, tmp_path / "out", size=5)
    gone = {passage.id for passage in before} - {passage.id for passage in after}
    assert gone == {before[0].id}
    fresh = {passage.meta["path"] for passage in after if passage.id not in {passage.id for passage in before}}
    assert fresh == {"in/a.md", "in/aa.md"}


def test_neighbours_lead_through_the_whole_document_and_not_beyond(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", a=" ".join(f"Sentence number {n} is here." for n in range(20)), b="other")
    passages, _ = imported(folder, tmp_path / "out", size=25)
    corpus = CorpusFile.scan(tmp_path / "out" / "corpus.jsonl")
    at, walked = passages[0], [passages[0]]
    while "next" in at.meta:
        following = corpus.by_id(str(at.meta["next"]))
        assert following.meta["previous"] == at.id
        at = following
        walked.append(at)
    assert " ".join(passage.text for passage in walked) == " ".join(f"Sentence number {n} is here." for n in range(20))
    assert len(walked) == len(passages) - 1 > 3


@pytest.mark.slow
def test_a_second_import_takes_the_place_of_the_first_and_reads_no_index(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", a="some words")
    imported(folder, folder / "out")
    folder_of(folder, b="more words")
    passages, made = imported(folder, folder / "out")
    assert [passage.text for passage in passages] == ["some words", "more words"]
    assert unread(made) == {"in/out": "left out: a data set or an index of coseek"}


def test_the_record_names_every_file_and_no_place_on_this_machine(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", a="some words")
    (folder / ".hidden").write_text("x")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    import_data("documents", [folder], tmp_path / "out")
    text = (tmp_path / "out" / "source.json").read_text()
    assert str(tmp_path) not in text + (tmp_path / "out" / "corpus.jsonl").read_text()
    card = json.loads(text)
    assert [*card["files"]] == ["in/a.md"]
    assert [row["path"] for row in card["unread"]] == ["in/.hidden", "in/picture.png"]


def test_nothing_readable_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(BROKEN["pdf"])
    with pytest.raises(DataError, match="a\\.pdf: it is no whole PDF"):
        import_data("documents", [tmp_path / "a.pdf"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="there is no file or folder"):
        import_data("documents", [tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(SettingError, match="overlap"):
        import_data("documents", [tmp_path], tmp_path / "out", settings={"size": 10, "overlap": 9})
    with pytest.raises(SettingError, match="squad has no settings"):
        import_data("squad", [tmp_path / "a.pdf"], tmp_path / "out", settings={"size": 10})


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['pypdfium2'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden), prepend=":")
    (tmp_path / "a.pdf").write_bytes(GOOD["pdf"].read_bytes())
    with pytest.raises(MissingExtra, match=r"a\.pdf needs it: pip install 'coseek\[documents\]'"):
        import_data("documents", [tmp_path / "a.pdf"], tmp_path / "out")


def test_passages_of_at_most_so_many_tokens_lose_nothing(tmp_path: Path) -> None:
    base, padded = model_path("base"), tmp_path / "padded"
    count = Tokenizer.from_file(str(base / "tokenizer.json"))
    padding = Tokenizer.from_file(str(base / "tokenizer.json"))
    padding.enable_padding(length=200)
    padding.enable_truncation(20)
    padded.mkdir()
    padding.save(str(padded / "tokenizer.json"))
    (tmp_path / "in").mkdir()
    text = " ".join(f"The heron no. {n} of Köln-Süd waits at https://example.org/{n * 7919}/" for n in range(60))
    (tmp_path / "in" / "a.md").write_text(f"# Herons\n\n{text}\n\n{'x' * 500}", encoding="utf-8")
    passages, made = imported(tmp_path / "in", tmp_path / "out", size=100, tokenizer=str(padded))
    sizes = [len(count.encode(passage.text, add_special_tokens=False).ids) for passage in passages]
    assert max(sizes) <= 100 and sum(size > 75 for size in sizes) > len(sizes) / 2
    assert "".join("".join(passage.text.split()) for passage in passages) == "".join(text.split()) + "x" * 500
    assert not unread(made)


def test_a_guessed_encoding_is_said_for_every_format_and_an_unknown_one_refuses_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    words = "Die Straße führt früh über den Fluss."
    mail = f"From: a@x.org\nSubject: s\n\n{words}\n"
    for name, text in (("a.txt", words), ("b.csv", f"text\n{words}"), ("c.html", f"<p>{words}"), ("d.eml", mail)):
        (folder / name).write_bytes(text.encode("cp1252"))
    (folder / "e.txt").write_text(words, encoding="utf-8")
    (folder / "f.txt").write_bytes(f"{words} ".encode() * 9 + b"\xff")
    passages, made = imported(folder, tmp_path / "out")
    assert sum("Straße führt früh über" in passage.text for passage in passages) == 6
    assert made.report["guessed_encodings"] == {"windows-1252": 4}
    assert unread(made) == {"notes/f.txt": "in part: 1 bytes are no utf-8 text"}


def test_a_zip_that_lies_about_sizes_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.txt": b"x " * 2_000_000}))
    true = (4_000_000).to_bytes(4, "little")
    while (offset := data.find(true)) >= 0:
        data[offset : offset + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data)
    (tmp_path / "b.txt").write_text("words")
    files = [tmp_path / "a.zip", tmp_path / "b.txt"]
    made = import_data("documents", files, tmp_path / "out", settings={"max_file_mb": 1})
    assert made.passages == len(unread(made)) == 1
