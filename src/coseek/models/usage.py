"""Usage: tokens that a server read and wrote for us, and what they cost."""

from dataclasses import dataclass

from pydantic import Field

from coseek.core.files import JsonObject
from coseek.core.settings import Settings


class Prices(Settings):
    """What a server asks for tokens, in dollars a million."""

    read: float = Field(default=0.0, ge=0)
    """Tokens of prompts."""
    written: float = Field(default=0.0, ge=0)
    """Tokens of answers."""

    def of(self, tokens: tuple[int, int] | None) -> float | None:
        """Dollars for tokens (read, written); `None` when there is a price and nobody counted."""
        if not (self.read or self.written):
            return 0.0
        return None if tokens is None else (tokens[0] * self.read + tokens[1] * self.written) / 1_000_000


@dataclass
class Usage:
    """Tokens as the server counted them, summed over its answers."""

    answers: int = 0
    """Answers of the server."""
    remembered: int = 0
    """Answers that came out of a cache: nothing was asked, nothing is counted."""
    uncounted: int = 0
    """Of the answers, those that said nothing of their tokens."""
    read_tokens: int = 0
    """Tokens of prompts."""
    written_tokens: int = 0
    """Tokens of answers."""

    def add(self, counted: tuple[int, int] | None) -> None:
        """One more answer, with the tokens (read, written) that it counts."""
        self.answers += 1
        if counted is None:
            self.uncounted += 1
        else:
            self.read_tokens += counted[0]
            self.written_tokens += counted[1]

    def cost_usd(self, prices: Prices) -> float:
        """Read · price + written · price; answers that were not counted are not in it."""
        return (self.read_tokens * prices.read + self.written_tokens * prices.written) / 1_000_000


def read_usage(answer: JsonObject) -> tuple[int, int] | None:
    """Tokens (read, written) from the `usage` of an OpenAI-compatible answer; `None` when it has none."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(read) is not int or type(written) is not int or read < 0 or written < 0:
        return None
    return read, written
