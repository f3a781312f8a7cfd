"""A language model for tests: it writes what a function says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coseek.core.errors import ModelError


@dataclass
class Scripted:
    """Writes `says(prompt)`, or fails; remembers what it was told."""

    says: Callable[[str], str]
    fault: str = ""
    identity: str = "scripted"
    calls: list[list[str]] = field(default_factory=list)

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        if self.fault:
            raise ModelError(self.fault)
        self.calls.append(list(prompts))
        return [self.says(prompt) for prompt in prompts]
