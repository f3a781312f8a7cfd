"""The import of documents: every format, every encoding, hostile and broken files, ids and neighbours."""

import gzip
import io
import json
import random
import sys
import tarfile
from email.message import EmailMessage
from pathlib import Path

import pytest
from bench.documents import BROKEN, FORMATS, make, shares, zipped

from coseek.core.errors import DataError, MissingExtra, SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.corpus_file import CorpusFile
from coseek.data.documents.archive import DocumentSettings
from coseek.data.documents.document import Document
from coseek.data.documents.readers import READERS, kind_of
from coseek.data.documents.reading import DocumentReader
from coseek.data.documents.split import count_words, split
from coseek.data.imports import ImportSummary, import_data
from coseek.data.passage import Passage

TEXT = "The heron waits in shallow water.\n\nIt eats small fish."


def imported(folder: Path, out: Path, **settings: object) -> tuple[list[Passage], ImportSummary]:
    made = import_data("documents", [folder], out, settings=settings)
    return list(CorpusFile.scan(out / "corpus.jsonl")), made


def unread(made: ImportSummary) -> dict[str, str]:
    """Path → outcome and first reason."""
    rows = made.report["unread"]
    assert isinstance(rows, list)
    found = {}
    for row in rows:
        assert isinstance(row, dict) and isinstance(row["reasons"], list)
        found[str(row["path"])] = f"{row['outcome']}: {row['reasons'][0]}"
    assert len(found) == len(rows), "a file is reported twice"
    return found


def read_one(name: str, data: bytes) -> tuple[Document, str]:
    kind = kind_of(name, data)
    assert kind is not None
    document = READERS[kind](data, name)
    sections = list(document.sections)
    document.sections = sections
    return document, "\n".join(block for section in sections for block in section.blocks)


@pytest.mark.slow
def test_no_format_loses_words_and_no_broken_file_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    known = make(folder, files=48, broken=16)
    made = import_data("documents", [folder], tmp_path / "out")
    assert min(shares(tmp_path / "out" / "corpus.jsonl", known).values()) >= 0.98
    assert {path.rpartition("/")[2] for path in unread(made)} == {f"{n:03}.{[*FORMATS][n % 8]}" for n in range(16)}


@pytest.mark.parametrize("suffix", [*FORMATS])
def test_a_small_file_of_each_format_is_read_and_a_broken_one_is_not(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"good.{suffix}").write_bytes(FORMATS[suffix](TEXT, random.Random(1)))
    (folder / f"bad.{suffix}").write_bytes(BROKEN[suffix])
    passages, made = imported(folder, tmp_path / "out")
    assert "small fish" in " ".join(passage.text for passage in passages)
    assert {passage.meta["path"] for passage in passages} == {f"in/good.{suffix}"}
    assert [*unread(made)] == [f"in/bad.{suffix}"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Der Fluß fließt über die Hügel, und die Fischer hören früh die Vögel im Schilf.", "latin-1"),
        ("Der Fluß fließt über die Hügel.", "utf-16"),
        ("A heron waits for fish in the reeds.", "utf-16-le"),
        ("Цапля стоит в воде и ждёт рыбу, пока солнце не сядет за холмы и лес.", "cp1251"),
        ("アオサギは浅い水の中で魚を待っています。太陽が丘の向こうに沈むまで、彼は動きません。", "shift_jis"),
        ("Zażółć gęślą jaźń, proszę państwa, to jest próba.", "iso8859-2"),
        ("왜가리는 얕은 물에서 물고기를 기다린다. 해가 언덕 너머로 질 때까지 움직이지 않는다.", "euc-kr"),
        ("L’été “chaud” – déjà 5 €", "utf-8-sig"),
    ],
)
def test_the_encoding_of_a_text_is_found_out(text: str, encoding: str) -> None:
    assert read_one("a.txt", text.encode(encoding))[1] == text


def test_an_html_page_keeps_its_text_and_loses_what_is_around_it() -> None:
    page = """<!doctype html><html><head><title>Birds</title><link rel=canonical href="https://x.org/b">
    <meta property="article:published_time" content="2026-01-02"><style>b{}</style></head><body><nav>Home</nav>
    <main><h1>Birds</h1><p>Herons <b>wait</b>.<script>steal()</script></p><h2>Food<a class=headerlink>¶</a></h2>
    <table><tr><th>fish</th><th>share</th></tr><tr><td>perch</td><td>9&nbsp;%</td></tr></table>
    <ul><li>eel</li><li>roach</li></ul><pre>a  b
c</pre><div hidden>secret</div></main><footer>Imprint</footer></body>"""
    document, text = read_one("a.html", page.encode())
    assert (document.title, document.meta) == ("Birds", {"url": "https://x.org/b", "date": "2026-01-02"})
    assert [section.headings for section in document.sections] == [("Birds",), ("Birds", "Food")]
    assert text.split("\n") == ["Herons wait.", "fish | share", "perch | 9 %", "eel", "roach", "a  b", "c"]


def test_markdown_keeps_headings_tables_numbers_code_and_front_matter() -> None:
    source = "---\ntitle: Birds\ndate: 2026-01-02\ntags: [a, b]\nbig: " + "9" * 400 + "\n---\n"
    source += "# One\n\ntext [link](https://x.org) `<code>` **bold**\nnext line\n\n"
    source += "## Two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    source += "1. first\n2. second\n\n```\nx = 1\n```\n\n## Empty\n\n## Last\n\nend"
    document, text = read_one("a.md", source.encode())
    assert document.title == "Birds"
    assert document.meta == {"date": "2026-01-02", "tags": ["a", "b"], "big": "9" * 400}
    assert [section.headings[-1] for section in document.sections] == ["One", "Two", "Empty", "Last"]
    for line in ("text link <code> bold", "a | b\n1 | 2", "1. first\n2. second", "x = 1", "Empty", "end"):
        assert line in text


def test_a_front_matter_that_is_a_bomb_or_no_yaml_harms_nothing() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    for front in (bomb, "a: [", "a: 2026-99-99", 'a: "\\ud800"'):
        _, text = read_one("a.md", f"---\n{front}\n---\n\nbody".encode())
        assert text == "body"


def test_rst_reads_no_other_file_and_keeps_what_docutils_does_not_know(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden treasure")
    source = f"""Birds
=====

:Date: 2026-01-02

.. include:: {secret}
.. csv-table::
   :file: {secret}
.. raw:: html
   :file: {secret}
.. versionadded:: 1.0
   Herons :birdref:`wade`.

iv. fourth
v. fifth

Food
----

=====  =====
fish   share
perch  nine
=====  =====
"""
    document, text = read_one("a.rst", source.encode())
    assert (document.title, document.meta) == ("Birds", {"date": "2026-01-02"})
    assert "treasure" not in text
    for kept in ("Herons wade.", "iv. fourth\nv. fifth", "fish | share\nperch | nine", "1.0"):
        assert kept in text
    assert [*document.sections][-1].headings[-1] == "Food"


def test_docx_has_headings_tables_and_no_entities() -> None:
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    cell = "<w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc>"
    row = f"<w:tr>{cell.format('perch')}{cell.format('nine')}</w:tr>"
    body = (
        '<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Birds</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>Her</w:t></w:r><w:ins><w:r><w:t>ons</w:t></w:r></w:ins><w:del><w:r><w:delText>x</w:delText></w:r></w:del></w:p>"
        f"<w:sdt><w:sdtContent><w:tbl>{row}{row}</w:tbl></w:sdtContent></w:sdt>"
    )
    document, text = read_one(
        "a.docx", zipped({"word/document.xml": f"<w:document {space}><w:body>{body}</w:body></w:document>".encode()})
    )
    assert (document.title, text) == ("Birds", "Herons\nperch | nine\nperch | nine")
    entity = '<!DOCTYPE w [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
    evil = f"{entity}<w:document {space}><w:p><w:r><w:t>a&e;b</w:t></w:r></w:p></w:document>"
    assert read_one("a.docx", zipped({"word/document.xml": evil.encode()}))[1] in ("ab", "a")


def test_the_printed_lines_of_a_pdf_become_sentences_again_page_by_page() -> None:
    text = "\n\n".join(f"Heron number {n} stands in the water and waits for a fish to come by. " * 3 for n in range(40))
    document, read = read_one("a.pdf", FORMATS["pdf"](text, random.Random(0)))
    assert [section.meta["page"] for section in document.sections] == [1, 2, 3]
    assert read.count("stands in the water and waits for a fish to come by.") >= 115  # the others cross a page


def test_rows_become_passages_and_a_wrong_line_is_told() -> None:
    document, text = read_one("a.csv", b'title;text;year\nHeron;"waits; long";2026\nStork;;2025\n')
    assert [section.headings for section in document.sections] == [("Heron",), ("Stork",)]
    assert text == "waits; long\nyear: 2026\nyear: 2025"
    document, text = read_one(
        "a.jsonl", b'{"name": "Heron", "url": "u", "n": [1]}\nnot json\n{"a": NaN}\n{"text": "b"}\n'
    )
    assert text == "url: u\nn: [1]\nb"
    assert [fault[:6] for fault in document.faults] == ["line 2", "line 3"]
    sections = [*document.sections]
    assert sections[0].meta == {"row": 1, "url": "u"}


def mail(subject: str, text: str, *attached: tuple[str, bytes]) -> bytes:
    made = EmailMessage()
    made["From"], made["Subject"], made["Date"] = "Ada <ada@example.org>", subject, "Fri, 02 Jan 2026 10:00:00 +0000"
    made.set_content(text)
    for name, data in attached:
        made.add_attachment(data, "application", "octet-stream", filename=name)
    return made.as_bytes()


def test_a_mailbox_gives_its_mails_and_their_attachments(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    mails = [mail("Héron", "It waits.\nFrom afar."), mail("Two", "See file.", ("../../notes.md", b"# Notes\n\nfish"))]
    box = b"".join(b"From a@b Fri Jan  2\n" + one.replace(b"\nFrom afar", b"\n>From afar") + b"\n\n" for one in mails)
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


def test_an_archive_reads_nothing_outside_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.tgz").write_bytes(
        tarred(
            (tarfile.TarInfo("../../evil.txt"), b"evil words"),
            (tarfile.TarInfo("/etc/evil.txt"), b"evil words"),
            (link("passwd.txt", "/etc/passwd"), b""),
            (tarfile.TarInfo("good.txt"), b"good words"),
        )
    )
    (folder / "b.zip").write_bytes(
        zipped({"..\\evil.txt": b"evil", "c:/evil.txt": b"evil", "sub/good.txt": b"more words"})
    )
    (folder / "link.txt").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    before = sorted(tmp_path.rglob("*"))
    passages, made = imported(folder, tmp_path / "out")
    assert [passage.text for passage in passages] == ["good words", "more words"]
    reasons = unread(made)
    assert len(reasons) == 7
    assert all("leads out of the archive" in why or "a link" in why for why in reasons.values())
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "out")) == before


def test_a_name_that_stands_twice_costs_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    twice = [(tarfile.TarInfo("a.md"), b"# A\n\nthe same words")] * 2
    (folder / "a.tgz").write_bytes(tarred(*twice, (tarfile.TarInfo("2-a.md"), b"# A\n\nthe same words")))
    (folder / "b.txt").write_text("words")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"words"))
    passages, made = imported(folder, tmp_path / "out")
    assert [passage.meta["path"] for passage in passages] == [
        "in/a.tgz/a.md", "in/a.tgz/2-a.md", "in/a.tgz/2-2-a.md", "in/b.txt", "in/b.txt.gz/b.txt",
    ]  # fmt: skip
    assert not unread(made)


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


@pytest.mark.parametrize(
    ("name", "data", "settings", "reason"),
    [
        ("a.zip", zipped({f"{n}.txt": b"x" * 8_000_000 for n in range(3)}), {}, "200 times its size"),
        (
            "a.tar.gz",
            tarred(*((tarfile.TarInfo(f"{n}.txt"), b"x" * 8_000_000) for n in range(3))),
            {},
            "200 times its size",
        ),
        ("a.txt.gz", gzip.compress(b"x " * 4_000_000), {"max_file_mb": 1}, "larger than 1 MB"),
        ("a.zip", zipped({"a.txt": b"x " * 4_000_000}), {"max_file_mb": 1}, "larger than 1 MB"),
        ("a.zip", zipped({f"{n}.txt": b"x" for n in range(9)}), {"max_archive_files": 8}, "more than 8 files"),
        ("a.zip", nested(zipped({"a.txt": b"deep"}), 4), {}, "nested more than 3 deep"),
        ("a.zip", zipped({"a.txt": b"words" * 50})[:-30], {}, "no whole zip archive"),
        ("a.tgz", tarred((tarfile.TarInfo("a.txt"), random.Random(0).randbytes(50_000)))[:-9000], {}, "unpacked"),
        ("a.txt", b"words " * 400_000, {"max_file_mb": 1}, "larger than 1 MB"),
        ("a.mbox", b"no mailbox", {}, "no mailbox"),
    ],
)
def test_bombs_and_broken_archives_are_refused_and_the_rest_is_read(
    tmp_path: Path, name: str, data: bytes, settings: dict[str, object], reason: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(data)
    (folder / "z.txt").write_text("the last file")
    passages, made = imported(folder, tmp_path / "out", **settings)
    assert passages[-1].text == "the last file"
    assert any(reason in why for why in unread(made).values()), unread(made)


def test_a_zip_that_lies_about_sizes_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.txt": b"x " * 2_000_000}))
    true = (4_000_000).to_bytes(4, "little")
    while (place := data.find(true)) >= 0:
        data[place : place + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data)
    (tmp_path / "b.txt").write_text("words")
    made = import_data(
        "documents", [tmp_path / "a.zip", tmp_path / "b.txt"], tmp_path / "out", settings={"max_file_mb": 1}
    )
    assert made.passages == 1
    assert len(unread(made)) == 1


DEEP = b"<div>" * 200_000 + b"deep"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.html", b"<html>" + DEEP),
        ("a.html", b"<html><script>only a script</script>"),
        ("a.html", b""),
        ("a.md", b">" * 30_000 + b" a"),
        ("a.json", b"[" * 100_000),
        (
            "a.pdf",
            b"%PDF-1.7\n" + b"1 0 obj << /Type /Catalog /Pages 1 0 R >> endobj\n" * 9 + b"trailer << /Root 1 0 R >>",
        ),
        ("a.txt", b" \n \n"),
        ("a.csv", b"a,b\n"),
    ],
)
def test_a_hostile_or_an_empty_file_is_told_and_harms_no_other(tmp_path: Path, name: str, data: bytes) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(data)
    (folder / "z.txt").write_text("the last file")
    passages, made = imported(folder, tmp_path / "out", seconds=20)
    assert passages[-1].text == "the last file"
    assert [*unread(made)] == [f"in/{name}"]


def test_a_reader_that_hangs_is_stopped_and_the_rest_of_its_archive_is_read(tmp_path: Path) -> None:
    slow = b"title,text\n" + b"a,b c d e f\n" * 300_000
    (tmp_path / "a.zip").write_bytes(zipped({"1.csv": slow, "2.txt": b"behind it"}))
    made = import_data("documents", [tmp_path / "a.zip"], tmp_path / "out", settings={"seconds": 1, "max_ratio": 1e6})
    texts = [passage.text for passage in CorpusFile.scan(tmp_path / "out" / "corpus.jsonl")]
    assert texts[-1] == "behind it"
    assert "longer than 1 second" in unread(made)["a.zip/1.csv"]


def test_a_reader_that_is_killed_loses_only_the_file_in_its_hands(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"1.csv": b"text\n" + b"a b c\n" * 20_000, "2.txt": b"behind it"}))
    with DocumentReader(DocumentSettings(max_ratio=1e6)) as reader:
        found = reader.read(tmp_path / "a.zip", "a.zip")
        next(found)
        assert reader._process is not None
        reader._process.kill()
        assert [*found][-1].text == "behind it"
    assert [(record["path"], record["outcome"]) for record in reader.records] == [
        ("a.zip/1.csv", "in part"),
        ("a.zip/2.txt", "read"),
    ]
    assert "crashed" in str(reader.records[0]["reasons"])


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits memory so")
def test_a_reader_that_runs_out_of_memory_harms_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"[" + b"[],[],[],[],[],[],[],[],[],[]," * 1_500_000 + b"1]")
    (tmp_path / "b.txt").write_text("behind it")
    sources = [tmp_path / "a.json", tmp_path / "b.txt"]
    made = import_data("documents", sources, tmp_path / "out", settings={"max_memory_mb": 256})
    assert made.passages == 1
    assert "memory" in unread(made)["a.json"]


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
    assert {passage.meta["path"] for passage in after if passage.id not in {one.id for one in before}} == {
        "in/a.md",
        "in/aa.md",
    }


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


def test_a_table_is_cut_between_rows_and_a_text_between_sentences() -> None:
    table = "\n".join(f"fish {n}. | share {n}" for n in range(10))
    pieces = list(split([table], 12))
    assert "\n".join(pieces) == table
    assert all(len(row.split("|")) == 2 for piece in pieces for row in piece.split("\n"))
    text = "One sentence is here. Another one follows it. A third ends it."
    assert list(split([text], 8)) == ["One sentence is here. Another one follows it.", "A third ends it."]
    assert list(split(["a b c d e f g h"], 4, overlap=1)) == ["a b c", "c d e f", "f g h"]
    endless = list(split(["x" * 100_000, "漢" * 1000], 50))
    assert sum(map(len, endless)) == 101_000
    assert all(count_words(piece) <= 50 for piece in endless)


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
    card: JsonObject = json.loads(text)
    assert [*card["files"]] == ["in/a.md"] if isinstance(card["files"], dict) else False
    assert isinstance(card["unread"], list)
    assert [row["path"] for row in card["unread"] if isinstance(row, dict)] == ["in/.hidden", "in/picture.png"]


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
    (tmp_path / "a.pdf").write_bytes(FORMATS["pdf"](TEXT, random.Random(0)))
    with pytest.raises(MissingExtra, match=r"a\.pdf needs it: pip install 'coseek\[documents\]'"):
        import_data("documents", [tmp_path / "a.pdf"], tmp_path / "out")


def test_a_passage_without_fields_is_written_as_ever() -> None:
    bare = Passage("a", "T", "x")
    assert bare.to_json() == {"id": "a", "title": "T", "text": "x"}
    row: JsonObject = {"id": "a", "title": "T", "text": "x", "meta": {"page": 3}}
    assert Passage.from_json(row).to_json() == row
    deep: Json = "x"
    for _ in range(60):
        deep = [deep]
    with pytest.raises(DataError, match="nested more than 50 deep"):
        Passage.from_json({**row, "meta": {"a": deep}})


def test_the_settings_say_what_they_are() -> None:
    assert all(field.description for field in DocumentSettings.model_fields.values())
