"""Run questions: roll out one agent over many questions into a run folder that can be resumed.

A run that no file can hold is replaced by one that records the fault, so that other runs go on. Files hold neither
non-finite numbers nor unpaired surrogates. Only a user's own part or question can bring them: input files with either
are refused, and servers' replies are repaired.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from coseek.agents.drivers import Agent, Limits, rollout
from coseek.agents.protocol import Protocol
from coseek.core.errors import RetrieverError
from coseek.core.files import json_line
from coseek.core.strict_json import fault_in, replace_surrogates
from coseek.data.digests import Identities, digest, questions_digest
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.trajectory import Segment, StopReason, Trajectory
from coseek.retrieval.retriever import Retriever


def row_seed(seed: int, question_id: str, sample: int) -> int:
    """Seed of one trajectory, from its own question and sample alone. 48 bits, which every JSON reader keeps."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}/{question_id}".encode()).digest()[:6], "big")


def rows_of(questions: Sequence[Question], seed: int, samples: int) -> list[RowKey]:
    """The rows of a run of these questions, by question in the given order, then by seed."""
    ids = [mended(question).id for question in questions]
    return [row for ident in ids for row in sorted((ident, row_seed(seed, ident, sample)) for sample in range(samples))]


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
    when another process is writing it. A question that no file can hold is recorded as a fault and not asked.
    `concurrency` and `overlap` are passed to `rollout`.
    """
    faults = {mended(question).id: why for question in questions if (why := fault_of(question))}
    asked_for = [mended(question) for question in questions] if faults else questions
    framed = agent.protocol.template.framed(agent.model.tokenizer)
    identities = identities_of(agent.identities, agent.protocol, retriever, asked_for, limits, seed, framed)
    if mark := agent.protocol.template.opened_mark(agent.model.tokenizer):
        identities["opened_by_prompt"] = mark
    rows = [(question, row_seed(seed, question.id, sample)) for sample in range(samples) for question in asked_for]
    if only is not None:
        rows = [row for row in rows if (row[0].id, row[1]) in only]
    order = None if only is not None else [question.id for question in asked_for]
    with run.open_for_append(identities, order, repeat_faults) as file:
        done = run.done()
        left = [row for row in rows if (row[0].id, row[1]) not in done]
        ended = len(rows) - len(left)

        def keep(trajectory: Trajectory) -> None:
            nonlocal ended
            Run.append(file, storable(trajectory))
            ended += 1
            if tell is not None:
                tell(ended, len(rows))

        if tell is not None:
            tell(ended, len(rows))
        for question, own_seed in left:
            if question.id in faults:
                keep(fault_trajectory(question, agent.protocol.name, own_seed, faults[question.id]))
        left = [row for row in left if row[0].id not in faults]
        asked, seeds = [row[0] for row in left], [row[1] for row in left]
        rollout(
            *(agent, retriever, asked, seeds, limits),
            concurrency=concurrency, overlap=overlap, on_done=keep, keep=False,
        )  # fmt: skip


NOT_KEPT = "the run cannot be kept in a file"


def fault_of(question: Question) -> str:
    """Why no run of this question can be written to a file, or ""."""
    return fault_in(question.to_json())


def fault_trajectory(
    question: Question, protocol: str, seed: int, why: str, segments: tuple[Segment, ...] = ()
) -> Trajectory:
    """Build the trajectory that records why a question's run cannot be written to a file."""
    return Trajectory(
        question=mended(question),
        protocol=protocol,
        segments=segments,
        searches=(),
        stop=StopReason.MODEL_ERROR,
        format_error=NOT_KEPT,
        stop_detail=f"{NOT_KEPT}: {replace_surrogates(why)}",
        seed=seed,
    )


def storable(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory if a file can hold it, else a `fault_trajectory` with its prompt where possible."""
    try:
        json_line(trajectory.to_json()).encode()
    except (ValueError, TypeError, RecursionError) as error:  # a UnicodeEncodeError is a ValueError
        why = f"{type(error).__name__}: {str(error)[:200]}"
        prompt = tuple(
            segment for segment in trajectory.segments[:1] if replace_surrogates(segment.text) == segment.text
        )
        return fault_trajectory(trajectory.question, trajectory.protocol, trajectory.seed, why, prompt)
    return trajectory


def mended(question: Question) -> Question:
    """Return the question with U+FFFD for unpaired surrogates and without the unwritable parts of its `meta`."""
    return replace(
        question,
        id=replace_surrogates(question.id),
        question=replace_surrogates(question.question),
        answers=tuple(map(replace_surrogates, question.answers)),
        gold_ids=tuple(map(replace_surrogates, question.gold_ids)),
        meta={name: value for name, value in question.meta.items() if not fault_in({name: value})},
    )
