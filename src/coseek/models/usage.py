"""Usage: token counts of a server's answers, and their cost."""

from dataclasses import dataclass

from pydantic import Field

from coseek.core.files import JsonObject
from coseek.core.settings import Settings


class Prices(Settings):
    """Prices of tokens in US dollars per million."""

    read: float = Field(default=0.0, ge=0)
    """Tokens of prompts."""
    written: float = Field(default=0.0, ge=0)
    """Tokens of answers."""

    def of(self, tokens: tuple[int, int] | None) -> float | None:
        """The cost in dollars of (read, written) tokens; `None` if there is a price and no count."""
        if not (self.read or self.written):
            return 0.0
        return None if tokens is None else (tokens[0] * self.read + tokens[1] * self.written) / 1_000_000


@dataclass
class Usage:
    """Sums of the server's token counts."""

    answers: int = 0
    remembered: int = 0
    """Answers from a cache."""
    uncounted: int = 0
    """Answers without token counts."""
    read_tokens: int = 0
    written_tokens: int = 0

    def add(self, counted: tuple[int, int] | None) -> None:
        """Add an answer with its (read, written) tokens."""
        self.answers += 1
        if counted is None:
            self.uncounted += 1
        else:
            self.read_tokens += counted[0]
            self.written_tokens += counted[1]

    def cost_usd(self, prices: Prices) -> float:
        """The cost in dollars of the counted tokens."""
        return prices.of((self.read_tokens, self.written_tokens)) or 0.0


def read_usage(answer: JsonObject) -> tuple[int, int] | None:
    """The (read, written) tokens in the `usage` of an OpenAI-compatible answer; `None` if missing."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(read) is not int or type(written) is not int or read < 0 or written < 0:
        return None
    return read, written
