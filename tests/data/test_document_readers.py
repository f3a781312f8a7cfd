"""The readers of documents: what each format keeps, loses and refuses; encodings; the cutting of texts."""

import json
from pathlib import Path

import pytest
from tests.data.document_files import FOLDER, imported, read_one

from coseek.core.files import Json, JsonObject
from coseek.core.text import decode
from coseek.data.documents.document import DocumentFault, count_words, split


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Der Fluß fließt über die Hügel, und die Fischer hören früh die Vögel im Schilf.", "latin-1"),
        ("Der Fluß fließt über die Hügel.", "utf-16"),
        ("A heron waits for fish in the reeds.", "utf-16-le"),
        ("Цапля ждёт рыбу\nв камышах.", "utf-16-be"),
        ("サギは\n魚を待つ。", "utf-16-le"),
        ("Цапля стоит в воде и ждёт рыбу, пока солнце не сядет за холмы и лес.", "cp1251"),
        ("アオサギは浅い水の中で魚を待っています。太陽が丘の向こうに沈むまで、彼は動きません。", "shift_jis"),
        ("Zażółć gęślą jaźń, proszę państwa, to jest próba.", "iso8859-2"),
        ("왜가리는 얕은 물에서 물고기를 기다린다. 해가 언덕 너머로 질 때까지 움직이지 않는다.", "euc-kr"),
        ("L’été “chaud” – déjà 5 €", "utf-8-sig"),
    ],
)
def test_the_encoding_of_a_text_is_found_out(text: str, encoding: str) -> None:
    assert read_one("a.txt", text.encode(encoding))[1] == text


@pytest.mark.parametrize(
    ("data", "text", "count"),
    [
        (b"a\0b heron ferry lake pump\n", "ab heron ferry lake pump", "1 NUL byte"),
        (b"a line\n" * 200 + b"\0" * 16 + b"a line\n" * 200, "\n".join(["a line"] * 400), "16 NUL bytes"),
        ("苍鹭是一种大型涉禽\0，常在水边觅食。".encode(), "苍鹭是一种大型涉禽，常在水边觅食。", "1 NUL byte"),
        ("Größe der Vögel\0 für Jürgen".encode("cp1252"), "Größe der Vögel für Jürgen", "1 NUL byte"),
    ],
)
def test_a_few_nul_bytes_neither_change_nor_refuse_a_text(data: bytes, text: str, count: str) -> None:
    document, read = read_one("a.txt", data)
    assert (read, document.faults) == (text, [f"{count} left out"])
    for binary in (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, bytes(range(256)), b"words" + b"\0" * 50):
        with pytest.raises(DocumentFault, match="not text"):
            read_one("a.txt", binary)


def test_decomposed_accents_are_composed() -> None:
    for name in ("a.txt", "a.md", "a.html"):
        assert read_one(name, "Vo\u0308gel\n".encode())[1] == "V\u00f6gel"


@pytest.mark.parametrize(
    ("declared", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "“Über” kostet 20 € – bar"),
        ("iso-8859-1", "utf-8", "Die Straße in Köln"),
        ("gb2312", "gbk", "朱镕基在北京"),
        ("shift_jis", "cp932", "①髙橋は東京にいる"),
        ("iso-8859-1", "latin-1", "Größe"),
    ],
)
def test_a_declared_encoding_that_is_meant_more_widely_loses_no_sign(declared: str, encoding: str, text: str) -> None:
    page = f'<html><head><meta charset="{declared}"></head><body><p>{text}</p></body></html>'
    assert decode(page.encode(encoding), "") == page
    mail = f"From: a@b.org\nSubject: x\nContent-Type: text/plain; charset={declared}\n\n{text}\n"
    assert text in read_one("a.eml", mail.encode(encoding))[1]


def test_letters_of_a_mail_header_without_an_encoding_are_kept() -> None:
    mail = "From: Jörg <a@b.org>\nSubject: Café in Köln\n\nText".encode("cp1252")
    document, text = read_one("a.eml", mail)
    assert document.title == "Café in Köln"
    assert text == "From: Jörg <a@b.org>\nText"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("昨日、店に行って娘のためにパンと牛乳を買いました。", "iso2022_jp"),
        ("Вчера я пошёл в магазин и купил хлеб.", "koi8-r"),
    ],
)
@pytest.mark.parametrize("declaration", ["", "Content-Type: text/plain; charset=us-ascii\n"])
def test_a_mail_of_another_script_without_a_true_declaration_is_read(
    text: str, encoding: str, declaration: str
) -> None:
    mail = f"From: a@b.org\n{declaration}\n".encode() + text.encode(encoding)
    document, read = read_one("a.eml", mail)
    assert text in read and document.encoding


def mail_of(kind: str, *parts: str) -> str:
    body = "".join(f"--{kind}\n{part}\n" for part in parts)
    return f"Content-Type: multipart/{kind}; boundary={kind}\n\n{body}--{kind}--\n"


@pytest.mark.medium
def test_every_text_and_attachment_of_a_mail_is_read_at_any_depth(tmp_path: Path) -> None:
    page = "Content-Type: text/html\n\n<p>charlie</p>"
    sheet = "Content-Type: text/csv\nContent-Disposition: attachment\n\nsum\ndelta"
    inner = mail_of("mixed", "\nalpha", "Content-Type: text/plain; name=b.txt\n\nbravo", sheet, "\nlast")
    mails = {
        "signed": mail_of("signed", inner, "Content-Type: application/pgp-signature\n\nx"),
        "page": mail_of("alternative", "\nPlease read this as a page.", page),
        "both": mail_of("alternative", "\ncharlie, charlie", page),
        "calendar": "Content-Type: text/calendar\n\nSUMMARY:echo",
        "boundless": "Content-Type: multipart/mixed\n\nfoxtrot",
    }
    files = {f"{name}__eml": f"From: a@b.org\n{mail}".encode() for name, mail in mails.items()}
    _, passages = imported(tmp_path, **files)
    texts = {
        str(passage.meta["path"]).removeprefix("notes/"): passage.text.replace("From: a@b.org\n\n", "")
        for passage in passages
    }
    assert texts.pop("signed.eml/3-attachment.sig", "x") == "x"
    assert texts == {
        "signed.eml": "alpha\n\nlast", "signed.eml/1-b.txt": "bravo", "signed.eml/2-attachment.csv": "sum: delta",
        "page.eml": "Please read this as a page.\n\ncharlie", "both.eml": "charlie, charlie",
        "calendar.eml": "SUMMARY:echo", "boundless.eml": "foxtrot",
    }  # fmt: skip


def test_mails_that_programs_keep_under_other_names_are_mails(tmp_path: Path) -> None:
    mail = "From: a@b.org\nX-Spam: no\nSubject: s\nContent-Transfer-Encoding: base64\n\nYWxwaGE=\n"
    begin = "From - Mon Jan 01 10:00:00 2024\n"
    text = "From: a@b.org\n\nFrom here on\n"
    _, passages = imported(
        tmp_path, inbox=f"\n{begin}{mail}\n{begin}{text}".encode()[1:], maildir=mail.encode(),
        apple__emlx=f"{len(mail)}\n{mail}<plist/>".encode(), page__mhtml=mail.encode(),
        mark__eml=f"\ufeff{mail}".encode(),
    )  # fmt: skip
    texts = [passage.text.replace("From: a@b.org\n\n", "") for passage in passages]
    assert sorted(texts) == ["From here on", *["alpha"] * 5]


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ('"a, b";c\n"d, e";1,5\n"f, g";2,5\n', ["a, b: d, e", "c: 1,5", "a, b: f, g", "c: 2,5"]),
        ("Report 2026\n\na;b\n1,5;x\n2,5;y\n", ["Report 2026", "a: 1,5", "b: x", "a: 2,5", "b: y"]),
        ("Report;;\na;b;c\n1;2;3;\n4;5;6;\n", ["Report", "a: 1", "b: 2", "c: 3", "a: 4", "b: 5", "c: 6"]),
        ("text\none, two\nthree\nfour, five, six\n", ["one, two", "three", "four, five, six"]),
        ('a,b\n1,"open\n2,x\n3,y\n', ["a: 1", 'b: "open', "a: 2", "b: x", "a: 3", "b: y"]),
        ('a,b\n"say "hi" now",x\n3,y\n', ['a: say hi" now"', "b: x", "a: 3", "b: y"]),
        (
            "Who waits here?,The heron.\nWho is away?,Storks.\n",
            ["Who waits here?", "The heron.", "Who is away?", "Storks."],
        ),
        ("1,2021-03-04,heron\n2,2021-03-05,\n", ["1", "2021-03-04", "heron", "2", "2021-03-05"]),
        ("When,Which bird was it?\n9:05,An old heron.\n", ["When: 9:05", "Which bird was it?: An old heron."]),
        ("place,1960,1961\nLake,3,4\n", ["place: Lake", "1960: 3", "1961: 4"]),
        (",a\n0,x\n1,y\n", ["column 1: 0", "a: x", "column 1: 1", "a: y"]),
        ("title,b\n" + "x" * 301 + ",y\n", ["title: " + "x" * 301, "b: y"]),
        ("\ufeffsep=;\r\nname;price\r\nMüller;1,50\r\n", ["price: 1,50"]),
        ('\ufeff"sep=;"\r\nname;price\r\nMüller;1,50\r\n', ["price: 1,50"]),
        (
            "n,,n, ,n 2,n\na,b,c,d,e,f,g",
            ["n: a", "column 2: b", "n: c", "column 4: d", "n 2: e", "n: f", "column 7: g"],
        ),
    ],
)
def test_a_table_of_any_make_keeps_its_columns_and_every_word(table: str, lines: list[str]) -> None:
    assert read_one("a.csv", table.encode())[1].split("\n") == lines


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


@pytest.mark.parametrize(
    ("source", "title", "meta", "words"),
    [
        ("---\n- The code is 4711.\n---\n\nRest.", "", {}, "The code is 4711. Rest."),
        ("---\n\nNote: the ferry leaves at nine.\n\n---\n\nRest.", "", {}, "Note: the ferry leaves at nine. Rest."),
        ("---\nJust text: a word\nmore: of it: here\n---\n\nRest.", "Just text: a word more: of it: here", {}, "Rest."),
        ("---\r\ntitle: Deploy: how\r\ntags: [a, b]\r\n---\r\nRest.", "Deploy: how", {"tags": ["a", "b"]}, "Rest."),
        ("---\ntitle:\tTabbed\nowner: @ada\n---\nRest.", "Tabbed", {"owner": "@ada"}, "Rest."),
        ("---\nlayout: {{ page }}\n---\nRest.", "", {"layout": "{{ page }}"}, "Rest."),
        (
            "---\nby: {mail, phone}\nof:\n  - name: Ada\n---\nRest.",
            "",
            {"by": "{mail, phone}", "of": "- name: Ada"},
            "Rest.",
        ),
    ],
)
def test_no_word_between_the_rules_at_the_top_of_a_markdown_file_vanishes(
    source: str, title: str, meta: JsonObject, words: str
) -> None:
    document, text = read_one("a.md", source.encode())
    assert (document.title, document.meta, " ".join(text.split())) == (title, meta, words)
    assert bool(document.faults) == any(sign in source for sign in ("Deploy", "\t", "{{"))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("The <nav> tag holds <button> or </b>.", ["The <nav> tag holds <button> or </b>."]),
        ("use <file name> in List<String> and <div>", ["use <file name> in List<String> and <div>"]),
        ("<select>\n\nThe rest.", ["<select>", "The rest."]),
        ("The <title> of it", ["The <title> of it"]),
        ("a<br>b <kbd>C</kbd> <img src=x> <a name=d> <nav>gone</nav> c", ["a", "b C c"]),
        ("<details>\n<summary>More</summary>\n\ntext\n\n</details>", ["More", "text"]),
    ],
)
def test_a_tag_that_markdown_names_is_text_and_hides_no_words(source: str, lines: list[str]) -> None:
    assert read_one("a.md", source.encode())[1].split("\n") == lines


def test_rst_reads_no_other_file_and_keeps_the_text_of_directives_and_tables(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden treasure")
    source = (FOLDER / "birds.rst").read_text(encoding="utf-8").replace("SECRET", str(secret))
    document, text = read_one("a.rst", source.encode())
    assert (document.title, document.meta) == ("Birds", {"date": "2026-01-02"})
    assert "treasure" not in text
    for kept in ("Herons wade.", "iv. fourth v. fifth", "fish share perch nine", "deep | blue", "sea | sky", "1.0"):
        assert kept in text
    assert [*document.sections][-1].headings[-1] == "Food"


RST = """
Herons
======

.. code-block:: python
   :linenos:

   def __init__(self, *args, **kwargs):
       # set up
       return 2*w*h < 3

The file ``__init__.py`` and __main__.py hold 2*3*4, as here::

    a_b_c = x[1](y)

# no title
"""


def test_code_in_rst_keeps_every_sign_and_makes_no_heading() -> None:
    document, text = read_one("a.rst", RST.encode())
    assert {section.headings for section in document.sections} == {("Herons",)}
    assert text.split("\n") == [
        "def __init__(self, *args, **kwargs):", "    # set up", "    return 2*w*h < 3",
        "The file __init__.py and __main__.py hold 2*3*4, as here:", "a_b_c = x[1](y)", "# no title",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<main>One part.</main><p>The text of this page stands here.", "One part. The text of this page stands here."),
        ("<main>First half.</main><div role=main>Second half.</div>", "First half. Second half."),
        ("<header>Site</header><main>The text of it all.</main><aside>More</aside>", "The text of it all."),
        (
            "<main hidden>Old.</main><div hidden><main>Older.</main></div><main>The text.</main><nav>Home</nav>",
            "The text.",
        ),
        ("<div role=main></div><article>The text.</article>", "The text."),
    ],
)
def test_a_main_part_that_is_not_the_page_loses_no_words(page: str, words: str) -> None:
    text = read_one("a.html", f"<html><body>{page}</body></html>".encode())[1]
    assert " ".join(text.split()) == words


def test_the_printed_lines_of_a_pdf_become_sentences_again_page_by_page() -> None:
    document, read = read_one("a.pdf", (FOLDER / "pages.pdf").read_bytes())
    assert [section.meta["page"] for section in document.sections] == [1, 2, 3]
    assert read.count("stands in the water and waits for a fish to come by.") >= 115  # the others cross a page


def test_a_hyphen_at_the_end_of_a_pdf_line_stays_in_names_and_numbers() -> None:
    lines = [
        "The famous captain of the old ship was Jean-",
        "Luc, and in the hard years of COVID-",
        "19 the reorgani-",
        "zation",
    ]
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    content = f"BT /F1 12 Tf 72 720 Td 14 TL {shown} ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(content)}>>stream\n{content}\nendstream", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]  # fmt: skip
    body = "".join(f"{number} 0 obj\n{each}\nendobj\n" for number, each in enumerate(objects, start=1))
    text = read_one("a.pdf", f"%PDF-1.4\n{body}trailer<</Size 6/Root 1 0 R>>\n%%EOF".encode())[1]
    assert (
        text == "The famous captain of the old ship was Jean-Luc, and in the hard years of COVID-19 the reorganization"
    )


def test_a_kind_that_is_read_with_its_markup_is_told() -> None:
    assert read_one("a.xml", b"<p>They wait.</p>")[0].faults == [
        "there is no reader for XML; its tags are kept as text"
    ]


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


def test_a_notebook_keeps_its_cells_and_lines_of_json_are_rows() -> None:
    cells: list[Json] = [{"cell_type": "markdown", "source": ["# Birds\n", "They *wait*."]}]
    cells += [{"cell_type": "code", "source": "x = 1\n```", "outputs": [{"text": "gone"}]}, 7]
    document, text = read_one("a.ipynb", json.dumps({"cells": cells, "nbformat": 4}).encode())
    assert (document.title, text) == ("Birds", "They wait.\nx = 1\n```")
    assert read_one("a.json", b'{"a": 1}\n{"a": 2}\n')[1] == "a: 1\na: 2"
    with pytest.raises(DocumentFault, match="not JSON"):
        read_one("a.json", b'{"a":\n1,\n}')


def test_a_table_is_cut_between_rows_and_a_text_between_sentences() -> None:
    table = "\n".join(f"fish {n}. | share {n}" for n in range(10))
    pieces = list(split([table], 12))
    assert "\n".join(pieces) == table
    assert all(len(row.split("|")) == 2 for piece in pieces for row in piece.split("\n"))
    sheet = "\n".join(["Report", "name | city", *(f"Ada {n}. | Köln" for n in range(9))])
    first, *later = split([sheet], 20)
    assert len(later) > 1 and "\n".join([first, *(piece.removeprefix("name | city\n") for piece in later)]) == sheet
    assert all(piece.startswith("name | city\n") and count_words(piece) <= 20 for piece in later)
    text = "One sentence is here. Another one follows it. A third ends it."
    assert list(split([text], 8)) == ["One sentence is here. Another one follows it.", "A third ends it."]
    assert list(split(["a b c d e f g h"], 4, overlap=1)) == ["a b c", "c d e f", "f g h"]
    assert list(split(["abcdefgh ij"], 4, count=len)) == ["abcd", "efgh", "ij"]
    endless = list(split(["x" * 100_000, "漢" * 1000], 50))
    assert sum(map(len, endless)) == 101_000
    assert all(count_words(piece) <= 50 for piece in endless)


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("<h2><button>Why?</button></h2><p>So.</p><dl><dt><button>Who</button><dd>Ada</dl>", ["So.", "Who", "Ada"]),
        ("<div hidden='until-found'>found</div><div hidden>gone</div>", ["found"]),
        ("<x-a><template shadowrootmode=open><p>inside</p></template></x-a><x-b>one</x-b><x-b>two</x-b>",
         ["inside", "one two"]),
        ("<p>10<sup>5</sup> m<sup>2</sup></p>", ["10^5 m2"]),
        ("<p><ruby>東<rp>(<rt>とう<rp>)</ruby><ruby>京<rt>きょう</rt></ruby>タワー</p>", ["東京タワー"]),
        ("<nav><a>home</a><main><p>text</p></main>", ["text"]),
        ("<p>alpha<br>gamma</p><span>beta</span>", ["alpha", "gamma", "beta"]),
        ("<p>alpha<hr>gamma</p>beta", ["alpha", "gamma", "beta"]),
        ("<p hidden>gone<br>gone</p>shown", ["shown"]),
        ("<table><td>a<td>b<tr><td>c</table><center>d</center>e", ["a | b", "c", "d", "e"]),
        ("<ol><li><p>one</p><p>more</p></li><li>two</li></ol>", ["1. one", "more", "2. two"]),
        ("<table><tr><th></th><th>2019</th><th>2020</th></tr><tr><td rowspan=2>fish</td><td>1</td><td>2</td></tr>"
         "<tr><td>3</td><td>4</td></tr><tr><td colspan=2>all</td><td>5 | 6</td></tr><tr><td> </td><td></tr></table>",
         ["| 2019 | 2020", "fish | 1 | 2", "| 3 | 4", "all | | 5 | 6"]),
    ],
)  # fmt: skip
def test_what_a_browser_shows_is_read_and_no_words_run_together(page: str, lines: list[str]) -> None:
    assert read_one("a.html", page.encode())[1].split("\n") == lines
