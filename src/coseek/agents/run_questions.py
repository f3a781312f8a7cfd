"""Run questions: roll out one agent over many questions into a run folder that can be resumed."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.core.errors import RetrieverError
from coseek.data.digests import Identities, digest, questions_digest
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.trajectory import Trajectory
from coseek.retrieval.retriever import Retriever


def row_seed(seed: int, question_id: str, sample: int) -> int:
    """Seed of one trajectory, from its own question and sample alone. 48 bits, which every JSON reader keeps."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}/{question_id}".encode()).digest()[:6], "big")


def rows_of(questions: Sequence[Question], seed: int, samples: int) -> list[RowKey]:
    """The rows of a run of these questions, by question in the given order, then by seed."""
    return [
        row
        for ident in (question.id for question in questions)
        for row in sorted((ident, row_seed(seed, ident, sample)) for sample in range(samples))
    ]


def identities_of(
    turn_identities: Identities,
    protocol: Protocol,
    retriever: Retriever,
    questions: Sequence[Question],
    limits: Limits,
    seed: int,
    framed: bool = False,
) -> dict[str, str]:
    """Digests of all that a run's trajectories depend on. `turn_identities` is `Agent.identities`; `framed`: the prompt
    stands in the tokenizer's chat template."""
    prompt_template = protocol.template.file.model_dump_json(exclude={"about"}, exclude_defaults=True)
    searched = {}
    # A server that does not answer is a fault of each search, not an error here; its identity is not compared.
    with suppress(RetrieverError):
        searched["retriever"] = retriever.identity
    return {
        "questions": questions_digest(questions),
        **turn_identities,
        "protocol": protocol.identity,
        "prompt_template": digest(prompt_template + (" in the chat template" if framed else "")),
        "limits": digest(limits.model_dump_json(exclude_defaults=True)),
        "seed": str(seed),
        **searched,
    }


def run_questions(
    run: Run,
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    limits: Limits,
    *,
    seed: int = 0,
    samples: int = 1,
    concurrency: int = 256,
    overlap: bool = False,
    only: Collection[RowKey] | None = None,
    repeat_faults: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> None:
    """Answer the questions that the run does not hold yet, appending each trajectory as it ends. At the end they are
    sorted by question, then by seed.

    `only` leaves out all other rows: another process makes them, and nothing is sorted. With `repeat_faults` questions
    whose run failed are asked again. `tell` is called with (ended, total). Raises
    `SettingError` when the run holds trajectories of other questions, another agent or another retriever, and `InUse`
    when another process is writing it. `concurrency` and `overlap` are passed to `rollout`.
    """
    framed = agent.protocol.template.framed(agent.model.tokenizer)
    identities = identities_of(agent.identities, agent.protocol, retriever, questions, limits, seed, framed)
    if mark := agent.protocol.template.opened_mark(agent.model.tokenizer):
        identities["opened_by_prompt"] = mark
    pairs = [(question, row_seed(seed, question.id, sample)) for sample in range(samples) for question in questions]
    if only is not None:
        pairs = [pair for pair in pairs if (pair[0].id, pair[1]) in only]
    order = None if only is not None else [question.id for question in questions]
    with run.open_for_append(identities, order, repeat_faults) as file:
        done = run.done()
        left = [pair for pair in pairs if (pair[0].id, pair[1]) not in done]
        ended = len(pairs) - len(left)

        def keep(trajectory: Trajectory) -> None:
            nonlocal ended
            Run.append(file, trajectory)
            ended += 1
            if tell is not None:
                tell(ended, len(pairs))

        if tell is not None:
            tell(ended, len(pairs))
        asked, seeds = [pair[0] for pair in left], [pair[1] for pair in left]
        rollout(
            *(agent, retriever, asked, seeds, limits),
            concurrency=concurrency, overlap=overlap, on_done=keep, keep=False,
        )  # fmt: skip
