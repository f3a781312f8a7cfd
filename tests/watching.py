"""Progress that remembers what it hears, and one in which somebody ends the process."""

import signal

from coseek.core.progress import NoProgress


class Heard(NoProgress):
    """Remembers stages, steps and lines; `warned` are the lines that nobody may miss."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[int] = []
        self.lines: list[str] = []
        self.warned: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.stages.append(name)

    def advance(self, done: int, note: str = "") -> None:
        self.steps.append(done)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, line: str) -> None:
        self.warned.append(line)
        self.say(line)


class Presses(Heard):
    """Somebody who presses Ctrl-C in a step, or sends another signal, once."""

    def __init__(self, step: int, sign: signal.Signals = signal.SIGINT) -> None:
        super().__init__()
        self.step, self.sign = step, sign

    def advance(self, done: int, note: str = "") -> None:
        super().advance(done, note)
        if done == self.step:
            self.step = 0
            signal.raise_signal(self.sign)
