"""Documents: imports 500 mixed files and compares the words of each format with those of its sources.

    python -m bench.documents [--files 500] [--broken 20]

The texts are licences, READMEs, documentation and metadata of the installed packages, written in eight formats: text
(in four encodings), Markdown, HTML, reStructuredText, PDF, DOCX, CSV and mail, a fifth of all inside zip and tar
archives. The broken files are of every format. Exit 1 where a bar is missed: 60 s, 500 MB (the import and its reader
together), every broken file reported, no other one, and 98 % of the words of each format.
"""

import argparse
import csv
import importlib.metadata
import io
import random
import re
import resource
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from html import escape
from pathlib import Path

from coseek.core.files import read_jsonl
from coseek.data.imports import import_data

WORDS = re.compile(r"\w+")
LONGEST = 30_000
"""Characters of a text."""
BARS = {"seconds": 60.0, "megabytes": 500.0, "share": 0.98}


def texts() -> list[str]:
    """Texts of the installed packages, each once, in a fixed order."""
    found: dict[str, None] = {}
    for package in sorted(importlib.metadata.distributions(), key=lambda one: str(one.name).lower()):
        for file in package.files or ():
            if re.search(r"(LICEN[CS]E|COPYING|README|METADATA|AUTHORS|NOTICE|\.(md|rst|txt))\b[^/]*$", str(file)):
                path = Path(str(file.locate()))
                if path.is_file() and path.stat().st_size < 10 * LONGEST:
                    text = path.read_bytes()[:LONGEST].decode("utf-8", errors="ignore")
                    if len(WORDS.findall(text)) > 30:
                        found[plain(text)] = None
    return list(found)


def plain(text: str) -> str:
    """Paragraphs of words alone: marks that one of the formats would read as its own are left out."""
    kept = ["".join(letter for letter in part if letter.isalnum() or letter in " \n.,") for part in text.split("\n\n")]
    return "\n\n".join(" ".join(part.split()).lstrip("., ") for part in kept if part.strip(" .,\n"))


def title_of(text: str) -> str:
    return " ".join(text.split()[:5]).strip(".,")


def as_text(text: str, rng: random.Random) -> bytes:
    encoding = rng.choice(["utf-8", "utf-8-sig", "utf-16", "cp1252"])
    return text.encode(encoding, errors="replace" if encoding != "cp1252" else "ignore")


def as_markdown(text: str, rng: random.Random) -> bytes:
    parts = [f"## {title_of(part)}\n\n{part}" if rng.random() < 0.2 else part for part in lines(text)]
    return ("---\ndate: 2026-01-02\n---\n\n# " + title_of(text) + "\n\n" + "\n\n".join(parts)).encode()


def as_html(text: str, rng: random.Random) -> bytes:
    tags = ["<p>{}</p>", "<ul><li>{}</li></ul>", "<pre>{}</pre>", "<table><tr><th>key</th><td>{}</td></tr></table>"]
    parts = "".join(rng.choice(tags).format(escape(part)) for part in lines(text))
    head = f"<!doctype html><html><head><title>{escape(title_of(text))}</title><style>p {{}}</style></head>"
    page = f"<nav>menu menu</nav><main><h1>Page</h1>{parts}</main><script>x()</script>"
    return f"{head}<body>{page}</body></html>".encode()


def as_rst(text: str, rng: random.Random) -> bytes:
    title = title_of(text)
    notes = [f".. versionadded:: 1.0\n\n   {part}" if rng.random() < 0.1 else part for part in lines(text)]
    return (
        "\n\n".join([title, "=" * (len(title.encode()) + 2), *notes]).replace(f"{title}\n\n=", f"{title}\n=").encode()
    )


def as_csv(text: str, rng: random.Random) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["title", "text", "year"])
    for number, part in enumerate(lines(text)):
        writer.writerow([f"row {number}", part, 2000 + number])
    return file.getvalue().encode()


def as_mail(text: str, rng: random.Random) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "ada@example.org", "bob@example.org", title_of(text)
    mail["Date"] = "Fri, 02 Jan 2026 10:00:00 +0000"
    mail.set_content(text)
    return mail.as_bytes()


def as_docx(text: str, rng: random.Random) -> bytes:
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    head = f'<w:p><w:pPr><w:pStyle w:val="H1"/></w:pPr><w:r><w:t>{escape(title_of(text))}</w:t></w:r></w:p>'
    body = "".join(f"<w:p><w:r><w:t>{escape(part)}</w:t></w:r></w:p>" for part in lines(text))
    styles = f'<w:styles {space}><w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style></w:styles>'
    return zipped(
        {
            "word/document.xml": f"<w:document {space}><w:body>{head}{body}</w:body></w:document>".encode(),
            "word/styles.xml": styles.encode(),
        }
    )


def as_pdf(text: str, rng: random.Random) -> bytes:
    """Pages of 50 lines in Helvetica, as a printer's driver would write them; Latin letters only."""
    printed = [line for part in lines(latin(text)) for line in wrapped(part, 90)]
    pages = [printed[start : start + 50] for start in range(0, len(printed), 50)]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, page in enumerate(pages):
        shown = "".join(f"({line}) Tj T*\n" for line in page)
        stream = f"BT /F1 10 Tf 14 TL 40 800 Td\n{shown}ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(stream.encode('cp1252'))} >>\nstream\n{stream}\nendstream",
        ]
    made, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        places.append(len(made))
        made += f"{number} 0 obj\n{each}\nendobj\n".encode("cp1252")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}trailer << /Size {len(places) + 1} /Root 1 0 R >>\n"
    return made + end.encode() + f"startxref\n{len(made)}\n%%EOF\n".encode()


def lines(text: str) -> list[str]:
    return text.split("\n\n")


def latin(text: str) -> str:
    return text.encode("ascii", errors="ignore").decode()


def wrapped(text: str, width: int) -> list[str]:
    made = [""]
    for word in text.split():
        if len(made[-1]) + len(word) >= width:
            made.append("")
        made[-1] += word if not made[-1] else f" {word}"
    return made


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip archive with the same bytes at any time: two workers of the tests must agree on its test's name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


FORMATS: dict[str, Callable[[str, random.Random], bytes]] = {
    "txt": as_text, "md": as_markdown, "html": as_html, "rst": as_rst,
    "csv": as_csv, "eml": as_mail, "docx": as_docx, "pdf": as_pdf,
}  # fmt: skip
BROKEN = {
    "txt": b"\x00\x01\x02", "md": b"\x00\x01", "html": b"\x00\x02\x03", "rst": b"\x01\x02\x00", "csv": b"\x00,\x00\n",
    "eml": b"no headers here\n\nat all", "docx": b"PK\x03\x04 cut off", "pdf": b"%PDF-1.4\ncut off",
}  # fmt: skip


def source_of(kind: str, text: str) -> str:
    return latin(text) if kind == "pdf" else text.encode("cp1252", "ignore").decode("cp1252") if kind == "txt" else text


def make(folder: Path, files: int, broken: int) -> dict[str, tuple[str, str]]:
    """Write the files. Returns path → (format, source text) of those that can be read."""
    rng = random.Random(0)
    pool, known = texts(), dict[str, tuple[str, str]]()
    kinds = [*FORMATS]
    packed: dict[str, bytes] = {}
    for number in range(files):
        kind = kinds[number % len(kinds)]
        text = source_of(kind, pool[number % len(pool)])
        name = f"{number:03}.{kind}"
        data = BROKEN[kind] if number < broken else FORMATS[kind](text, rng)
        if number % 5 == 4:
            packed[name] = data
        else:
            (folder / name).write_bytes(data)
        if number >= broken:
            place = ("pack.zip" if number % 10 == 4 else "pack.tar.gz") if number % 5 == 4 else ""
            known[f"{folder.name}/{place and place + '/'}{name}"] = (kind, text)
    (folder / "pack.zip").write_bytes(zipped({name: data for name, data in packed.items() if int(name[:3]) % 10 == 4}))
    with tarfile.open(folder / "pack.tar.gz", "w:gz") as archive:
        for name, data in packed.items():
            if int(name[:3]) % 10 != 4:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return known


def shares(corpus: Path, known: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Format → share of the words of its sources, each as often as it stands there, that its passages hold."""
    there: dict[str, Counter[str]] = {path: Counter() for path in known}
    for _, row in read_jsonl(corpus):
        meta = row["meta"]
        assert isinstance(meta, dict)
        there[str(meta["path"])].update(WORDS.findall(f"{row['title']} {row['text']}".lower()))
    kept: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for path, (kind, text) in known.items():
        wanted = Counter(WORDS.findall(text.lower()))
        kept[kind] += (wanted & there[path]).total()
        whole[kind] += wanted.total()
    return {kind: kept[kind] / whole[kind] for kind in FORMATS}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--broken", type=int, default=20)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "mixed"
        folder.mkdir()
        known = make(folder, args.files, args.broken)
        began = time.perf_counter()
        made = import_data("documents", [folder], Path(name) / "out")
        seconds = time.perf_counter() - began
        memory = (
            sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
        )
        unread = made.report["unread"]
        assert isinstance(unread, list)
        found = shares(Path(name) / "out" / "corpus.jsonl", known)
    print(f"{args.files} files: {made.passages} passages in {seconds:.1f} s, {memory:.0f} MB, {len(unread)} reported")
    for row in unread:
        print(f"  {row}")
    for kind, share in found.items():
        print(f"{kind:>5} {share:.4f}")
    late = seconds > BARS["seconds"] or memory > BARS["megabytes"]
    return int(late or len(unread) != args.broken or min(found.values()) < BARS["share"])


if __name__ == "__main__":
    sys.exit(main())
