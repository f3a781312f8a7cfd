"""View template: a layout of a query view that keeps the line breaks of its fields, as published retrievers read them.

A template is a text with `{question}`, `{turns}`, `{reasoning}` and `{query}`; the template of a turn, which is
repeated for each earlier search, has `{turn}`, `{reasoning}`, `{query}`, `{documents}` and `{count}`. Fields are filled
in once. A line inside a field that would begin like a line of the template gets a backslash in front, so that no text
from an agent or a passage can pose as another field.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from coseek.core.errors import SettingError

NO_REASONING = "Empty"
"""Stands for missing reasoning, as in AgentIR's training data."""
_FIELD = re.compile(r"\{([a-z]*)\}")
_OTHER_FIELD = re.compile(r"\{(?!turn\})")
"""Where a field but `{turn}` begins."""
_TEXT_FIELDS = ("question", "turns", "reasoning", "query")
_TURN_FIELDS = ("turn", "reasoning", "query", "documents", "count")
_LINE_ENDS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"


@dataclass(frozen=True)
class ViewTemplate:
    """The layout of a view. Raises `SettingError` for an unknown field, or if `{query}` does not occur exactly once."""

    text: str
    turn: str = ""
    """One earlier search. Needed if `text` has `{turns}`."""

    def __post_init__(self) -> None:
        for name, template, known in (("text", self.text, _TEXT_FIELDS), ("turn", self.turn, _TURN_FIELDS)):
            unknown = [field for field in _FIELD.findall(template) if field not in known]
            if unknown:
                raise SettingError(f"a view's {name} has no field {{{unknown[0]}}}; use {', '.join(known)} in braces")
        if self.text.count("{query}") != 1:
            raise SettingError(f"a view's text needs {{query}} once: {self.text!r}")
        if ("{turns}" in self.text) != bool(self.turn):
            raise SettingError("a view with {turns} in its text needs a template `turn`, and no other view has one")

    def has(self, field: str) -> bool:
        """Whether a field occurs in either template."""
        return f"{{{field}}}" in self.text + self.turn

    def fill(self, fields: Mapping[str, str]) -> str:
        """Fill in the current turn; `turns` holds what `fill_turn` returned."""
        return _filled(self.text, fields)

    def fill_turn(self, number: int, reasoning: str, query: str, documents: list[str]) -> str:
        """Fill in an earlier search."""
        fields = {"turn": str(number), "reasoning": reasoning or NO_REASONING, "query": query}
        return _filled(self.turn, {**fields, "documents": "\n\n".join(documents), "count": str(len(documents))})

    def escape(self, field: str, text: str) -> str:
        """Put a backslash in front of each line of a field's text that begins like a line of the template. The first
        line counts if the field begins a line."""
        begins_line = f"\n{{{field}}}" in f"\n{self.text}\n{self.turn}"
        return self._imitation.sub(r"\1\\", f"\n{text}")[1:] if begins_line else self._imitation.sub(r"\1\\", text)

    @cached_property
    def _imitation(self) -> re.Pattern[str]:
        labels = "|".join(dict.fromkeys(_labels(self.text + "\n" + self.turn)))
        # Without a label there is nothing to imitate, and the pattern matches nowhere.
        return re.compile(rf"([{_LINE_ENDS}])(?=[^\S{_LINE_ENDS}]*(?:{labels or '(?!)'}))", re.IGNORECASE)


def _filled(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda found: fields[found[1]], template)


def _labels(templates: str) -> Iterator[str]:
    """Patterns of what the lines of templates begin with: up to a colon, else up to the first field."""
    for line in templates.replace("{turns}", "\n").splitlines():
        begins, colon, _ = line.partition(":")
        label = _OTHER_FIELD.split(begins + colon)[0].strip()
        if label and label != "{turn}":
            yield r"\d+".join(map(re.escape, label.split("{turn}")))
