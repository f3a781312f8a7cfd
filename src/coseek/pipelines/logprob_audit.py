"""Log-probability audit: the agent's log-probabilities, computed again by its model and compared.

The sampler adds in another order than a pass over the whole context does, which moves the last bits; in a narrow
precision, more of them.
"""

from collections.abc import Iterator
from dataclasses import replace

from coseek.agents.factory import AgentSettings, check_folder
from coseek.data.audit import Finding, Share, Violation
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.pretrained import load_model
from coseek.models.shipped import model_path
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings

NEAR, ROUGHLY_NEAR = 0.001, 0.5
"""How many nats a log-probability may lie off that was sampled in float32, and in another precision."""


class LogprobAudit:
    """Implements `RunCheck`."""

    def __init__(self, model: str, agent: AgentSettings) -> None:
        """Open the model folder `model` that sampled a run of `agent`."""
        check_folder(model_path(model))
        # At temperature 0 the most likely token is taken, with its log-probability at temperature 1.
        temperature = agent.temperature or 1.0
        self._policy = Policy(load_model(model_path(model), agent), LearnerSettings(), 0, temperature)
        self.near = NEAR if agent.precision == "float32" else ROUGHLY_NEAR
        self.rows = self.compared = 0
        self.widest = 0.0

    def findings(self, trajectory: Trajectory) -> Iterator[Finding]:
        """The turns whose log-probabilities the model does not give. Side contexts are told without a segment."""
        wrote = _count(trajectory.segments) + sum(map(_count, trajectory.side_contexts))
        self.rows += wrote
        if not trajectory.exact or not wrote:
            return
        yield from self._wrong(trajectory, trajectory.segments)
        for number, segments in enumerate(trajectory.side_contexts, start=1):
            for what, _ in self._wrong(trajectory, segments):
                yield f"side context {number}: {what}", None

    def _wrong(self, trajectory: Trajectory, segments: tuple[Segment, ...]) -> Iterator[Finding]:
        batch = make_batch([replace(trajectory, segments=segments, side_contexts=())])
        again_T = self._policy.forward(batch, batch.agent_BT)[0].tolist()
        start = 0
        for at, segment in enumerate(segments):
            if segment.author is Author.AGENT and segment.logprobs:
                values = again_T[start : start + len(segment.ids)]
                gaps = [abs(one - other) for one, other in zip(segment.logprobs, values, strict=True)]
                self.compared, self.widest = self.compared + len(gaps), max(self.widest, *gaps)
                if (far := max(gaps)) > self.near:
                    place = gaps.index(far)
                    kept, now = segment.logprobs[place], values[place]
                    yield f"token {place} has the log-probability {kept:.6g}, and the model gives {now:.6g}", at
            start += len(segment.ids)

    def rest(self) -> Iterator[Violation]:
        yield from ()

    def shares(self) -> Iterator[Share]:
        told = f"log-probabilities (within {self.near:g} nats; the widest gap is {self.widest:.2g})"
        yield Share(told, self.rows, self.compared, 0)


def _count(segments: tuple[Segment, ...]) -> int:
    return sum(len(segment.ids) for segment in segments if segment.author is Author.AGENT)
