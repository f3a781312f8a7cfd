"""The page: what it holds, and that nothing in it is markup, script or a request but what we wrote."""

import re
from pathlib import Path

from tests.view.samples import HOSTILE, Elements, make_run, trajectory

from coseek.view.page import SCRIPTS, html_of, page_of, part
from coseek.view.run_source import open_sources


def page_text(*folders: Path) -> str:
    return page_of(*open_sources(folders))[1]


def test_no_text_of_a_run_becomes_an_element_or_closes_the_data_block(tmp_path: Path) -> None:
    assert len(set(HOSTILE)) == 200
    folder = make_run(tmp_path / "<b>&run'", [trajectory(f"q{at} {text}", text) for at, text in enumerate(HOSTILE)])
    (folder / "metrics.jsonl").write_text('{"step": 1, "</script><b>": 0.5}\n', encoding="utf-8")
    page, plain = Elements(page_text(folder)), Elements(html_of("x", {}))
    assert page.tags == plain.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in plain.attributes]
    assert page.contents[::2] == plain.contents[::2], "style and script are ours to the letter"
    index = page.data["index"]
    assert isinstance(index, dict)
    questions = index["questions"]
    assert isinstance(questions, list)
    assert [row[1] for row in questions if isinstance(row, list)] == [f"Who {text}?" for text in HOSTILE]
    bodies = page.data["bodies"]
    assert isinstance(bodies, list)
    assert len(bodies) == 200
    for body, text in zip(bodies, HOSTILE, strict=True):
        assert isinstance(body, dict)
        assert isinstance(body["segments"], list)
        assert body["segments"][1] == {
            "tag": "search",
            "text": f"<search>{text}</search>",
            "tokens": 2,
            "ids": [65, 66],
            "logprobs": [-250, -2000],
        }


def test_the_page_names_no_address_and_its_policy_forbids_every_request() -> None:
    page = Elements(html_of("x", {}))
    own = part("page.html") + part("page.css") + "".join(map(part, SCRIPTS))
    # The name space of SVG is a name, and nothing is asked there.
    assert not re.findall(r"(?:https?:|wss?:)?//\w[\w.]*\.\w", own.replace("http://www.w3.org/2000/svg", ""))
    assert not re.findall(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", own)
    assert "default-src 'none'" in page.policy
    assert "unsafe" not in page.policy
    assert not re.search(r"(?:connect|frame|font|media|object|worker)-src", page.policy), "default-src holds for these"


def test_the_script_makes_no_markup_of_text() -> None:
    script = "".join(map(part, SCRIPTS))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser", script
    )
    assert "</" not in script.replace("</think>", ""), "nothing closes the script element"


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a"), trajectory("b", right=False)])
    assert page_text(folder) == page_text(folder)
