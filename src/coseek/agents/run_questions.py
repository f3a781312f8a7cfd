"""Run questions: roll out one agent over many questions into a run folder that can be resumed."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count

from coseek.agents.drivers import Agent, rollout
from coseek.agents.episode import seed_of
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.core.errors import RetrieverError
from coseek.data.digests import Identities, digest, questions_digest
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.trajectory import Trajectory
from coseek.retrieval.retriever import Retriever


def row_seed(seed: int, question_id: str, sample: int) -> int:
    """Seed of one trajectory, which depends only on `seed`, its question and its sample."""
    return seed_of(f"{seed}/{sample}/{question_id}")


def row_keys_of(questions: Sequence[Question], seed: int, samples: int) -> list[RowKey]:
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
    """Digests of everything that a run's trajectories depend on. `turn_identities` is `Agent.identities`; `framed`:
    whether the prompt is put into the tokenizer's chat template."""
    prompt_template = protocol.template.file.model_dump_json(exclude={"about"}, exclude_defaults=True)
    identities = {
        "questions": questions_digest(questions),
        **turn_identities,
        "protocol": protocol.identity,
        "prompt_template": digest(prompt_template + (" in the chat template" if framed else "")),
        "limits": digest(limits.model_dump_json(exclude_defaults=True)),
        "seed": str(seed),
    }
    # A server that does not answer is a fault of each search, not an error here; its identity is not compared.
    with suppress(RetrieverError):
        identities["retriever"] = retriever.identity
    return identities


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
    """Answer the questions that are missing in the run, appending each trajectory as it ends. Finally the trajectories
    are sorted by question, then by seed.

    `only` restricts the rows: another process makes the others, and nothing is sorted. `repeat_faults` repeats
    questions whose run ended with a fault. `tell` is called with (ended, total). Raises `SettingError` when the run
    holds trajectories of other questions, another agent or another retriever, and `InUse` when another process is
    writing it. `concurrency` and `overlap` are passed to `rollout`.
    """
    framed = agent.protocol.template.framed(agent.model.tokenizer)
    identities = identities_of(agent.identities, agent.protocol, retriever, questions, limits, seed, framed)
    if mark := agent.protocol.template.opened_mark(agent.model.tokenizer):
        identities["opened_by_prompt"] = mark
    rows = [(question, row_seed(seed, question.id, sample)) for sample in range(samples) for question in questions]
    rows = [row for row in rows if only is None or (row[0].id, row[1]) in only]
    order = None if only is not None else [question.id for question in questions]
    with run.open_for_append(identities, order, repeat_faults) as file:
        done_keys = run.finished_keys()
        missing_rows = [row for row in rows if (row[0].id, row[1]) not in done_keys]
        counter = count(len(rows) - len(missing_rows))

        def report() -> None:
            if tell is not None:
                tell(next(counter), len(rows))

        def append(trajectory: Trajectory) -> None:
            Run.append(file, trajectory)
            report()

        report()
        rollout(
            *(agent, retriever, [row[0] for row in missing_rows], [row[1] for row in missing_rows], limits),
            concurrency=concurrency, overlap=overlap, on_done=append, keep=False,
        )  # fmt: skip
