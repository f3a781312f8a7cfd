"""Fears about repetition: that a loop is shown, and that text without one is shortened."""

from coseek.core.text import has_loop, without_repetition

LOOP = "<think> Julenta , mayor" + " painter Seminary" * 48


def test_a_loop_is_shortened_and_what_follows_it_is_not() -> None:
    assert len(without_repetition(LOOP)) < 100 and has_loop(LOOP)
    assert without_repetition(f"{LOOP}</think><search> x</search>").endswith(
        "…painter Seminary</think><search> x</search>"
    )


def test_lists_tables_and_emphasis_are_no_loops() -> None:
    for text in ("no, no, no, no", "| 0 | 0 | 0 |\n" * 5, "the same , the same , the same", "", " . " * 50):
        assert without_repetition(text) == text
