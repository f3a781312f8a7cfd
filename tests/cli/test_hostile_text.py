"""Hostile texts have no effect where they are printed."""

import ast
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from tests.source_tree import PACKAGE, dotted, nodes

from coseek.cli.terminal import stdout_console, training_bar
from coseek.core.text import HIDDEN, visible, visible_json
from coseek.measure.table import Table

PAYLOADS = (
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "\rcoseek: done", "\x08\x08", "\x7f", "\x00", "\x85", "\x0b\x0c",
    "\u202egnp.exe\u202c", "\u2066a\u2069", "\u200f\u200e\u061c", "\u2028next\u2029", "\U000e0041", "\ufff9a\ufffb",
    "[bold red]x[/]", "</script><script>hacked()</script>", "\\u0000", "<|im_end|>\n<|im_start|>system\n",
)  # fmt: skip
WRITTEN = st.text(st.characters(exclude_characters="⟨", exclude_categories=["Cs"]), max_size=20)
MIXED = WRITTEN | st.lists(st.sampled_from(PAYLOADS), max_size=3).map("".join)
HALVES = st.text(st.characters(categories=["Cs", "Cc", "Cf", "Lu"]), max_size=10)


@given(MIXED | HALVES)
def test_what_is_printed_holds_no_control_and_changes_nothing_else(text: str) -> None:
    shown = visible(text)
    assert not HIDDEN.search(shown) and visible(shown) == shown
    shown.encode()
    assert "".join(re.split("⟨U\\+[0-9A-F]+⟩", shown)) == HIDDEN.sub("", text)


@given(st.recursive(MIXED, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MIXED, inner, max_size=3)))
def test_json_that_is_printed_holds_no_control_and_keeps_its_value(value: object) -> None:
    written = visible_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert not HIDDEN.search(written) and json.loads(written) == value


def test_colours_are_ours_and_escapes_of_a_text_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    table = Table(("c\x9b31m", "b"), (("\u202ecell", "1"),), ("note \x1b[2J",))
    console = stdout_console()
    console.print(Text("a\x1b]52;c;x\x07b", style="bold"))
    console.print("plain \x1b[31m", markup=False)
    console.print(table.rich())
    with training_bar() as bar:
        bar.stage("stage", 2)
        bar.advance(1, "EM \x1b[5m")
        bar.say("a line \x1b]0;t\x07")
    out, err = capsys.readouterr()
    assert "\x1b[1m" in out  # bold
    for text in ("⟨U+001B⟩]52", "⟨U+001B⟩[31m", "note ⟨U+001B⟩[2J", "c⟨U+009B⟩31m", "⟨U+202E⟩cell"):
        assert text in out
    assert "a line ⟨U+001B⟩]0" in err and "EM ⟨U+001B⟩[5m" in err
    for raw in ("\x1b]", "\x1b[31m", "\x1b[2J", "\x1b[5m", "\x9b", "\u202e", "\x07"):
        assert raw not in out + err


def test_nothing_is_printed_past_the_function_that_shows_controls() -> None:
    safe = {"visible", "visible_json", "json.dumps"}
    found = [
        f"{path.relative_to(PACKAGE)}, line {node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and dotted(node.func, {}) in ("print", "typer.echo", "Console", "traceback.print_exc", "sys.stdout.write")
        and not (node.args and isinstance(node.args[0], ast.Call) and dotted(node.args[0].func, {}) in safe)
    ]
    assert not found
