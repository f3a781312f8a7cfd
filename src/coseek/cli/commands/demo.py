"""Answer a two-hop question step by step, and compare with one search: seconds, no training, no download."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument

import coseek
from coseek.agents.drivers import rollout
from coseek.agents.factory import limits_of, open_agent, settings_for
from coseek.agents.search_turns import reasoning_of
from coseek.agents.sources import holds
from coseek.cli.terminal import new_app, shell_word, stdout_console
from coseek.core.errors import SettingError
from coseek.core.text import as_written
from coseek.data.answers import exact_match
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Trajectory
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.retrieval.index import build_index

GROUP = "Start here"
app = new_app()

AGENT = "expert"
PASSAGES = 3
"""Passages per search, for the agent and for the single search."""
WIDTH = 88
"""Maximum number of columns, also for a file or a pipe."""
HEAD, GOOD, BAD, FAINT = "bold", "bold green", "bold red", "dim"


@dataclass(frozen=True)
class Demonstration:
    """The results to show."""

    passages: int
    """Number of passages in the world."""
    once: Sequence[Hit]
    """Hits of one search with the question."""
    steps: Trajectory
    thoughts: Sequence[str]
    """The agent's thoughts, one per turn."""
    two_hop: int
    """Number of two-hop questions in the world's test set."""
    complete_once: int
    """Number of questions for which one search finds all gold passages."""
    complete_in_steps: int
    """Number of questions for which the agent's searches do."""


@app.command()
def demo(
    number: Annotated[int, Argument(metavar="[NUMBER]", help="Number of the two-hop question, from 1.")] = 26,
) -> None:
    """Answer a two-hop question step by step, and compare with one search.

    Makes a small world, indexes it with BM25 and runs a scripted agent over it. Nothing is recorded, trained or
    downloaded; it needs neither torch nor a GPU.
    """
    console = stdout_console()
    console.width = min(console.width, WIDTH)
    show(play(number), console)


def play(number: int) -> Demonstration:
    """Make the world, and answer its two-hop test questions with one search and with the agent."""
    world = make_world(WorldSettings(size="tiny"))
    questions = [question for question in world.questions["test"] if question.hops == 2]
    if not 1 <= number <= len(questions):
        raise SettingError(f"the demo has questions 1 to {len(questions)}, not {number}")
    agent = open_agent(settings_for(AGENT))
    limits = limits_of(agent).model_copy(update={"passages_per_search": PASSAGES})
    with TemporaryDirectory() as folder:
        index = build_index(world.corpus, "bm25", Path(folder) / "index")
        single_hits = index.search([question.question for question in questions], PASSAGES)
        trajectories = rollout(agent, index, questions, [0] * len(questions), limits)
    steps = trajectories[number - 1]
    grammar = agent.protocol.grammar
    return Demonstration(
        len(world.corpus),
        single_hits[number - 1],
        steps,
        [reasoning_of(grammar, grammar.read(segment)) for segment in steps.segments if segment.author is Author.AGENT],
        len(questions),
        sum(complete(question, hits) for question, hits in zip(questions, single_hits, strict=True)),
        sum(complete(done.question, [hit for search in done.searches for hit in search.hits]) for done in trajectories),
    )


def complete(question: Question, hits: Sequence[Hit]) -> bool:
    """Whether the hits include all gold passages."""
    return set(question.gold_ids) <= {hit.passage.id for hit in hits}


def show(result: Demonstration, console: Console) -> None:
    """Print the single search, the steps, the counts, and three next steps."""
    console.print(f"{result.passages} passages of a generated world, BM25, and a scripted agent, run now", markup=False)
    console.print()
    console.print(grid(("question", Text(as_written(result.steps.question.question), style=HEAD))))
    console.print(Text("\nOne search (naive RAG)", style=HEAD))
    console.print(grid(*single_search_rows(result)))
    console.print(Text("\nStep by step (search agent)", style=HEAD))
    console.print(grid(*turn_rows(result)))
    console.print(
        f"\nOne search finds every passage needed for {result.complete_once} of {result.two_hop} two-hop questions, "
        f"the agent for {result.complete_in_steps}. It is a script that knows which facts to look for; a trained model "
        "learns that from rewards.\n",
        markup=False,
    )
    program = program_name()
    checkout = Path("Makefile").is_file() and Path("src/coseek").resolve() == Path(coseek.__file__).resolve().parent
    next_steps = (
        ("train one:", "make quickstart" if checkout else f"{program} quickstart"),
        ("documents:", f"{program} data import documents FOLDER --out mine"),
        ("logs:", f"{program} data import traces LOGS.jsonl --out runs/theirs"),
    )
    console.print(grid(*((label, Text(line, style=HEAD)) for label, line in next_steps)))


def single_search_rows(result: Demonstration) -> list[tuple[str, Text]]:
    """Rows of the single search."""
    question = result.steps.question
    ranked = {str(rank): hit.passage for rank, hit in enumerate(result.once, start=1)}
    ranks = [rank for rank, passage in ranked.items() if any(holds(passage, gold) for gold in question.answers)]
    location = f"in passage {', '.join(ranks)}" if ranks else "in none of these passages"
    return [
        ("search", Text(as_written(question.question))),
        *((rank, highlighted(passage, question)) for rank, passage in ranked.items()),
        ("answer", Text(location, style=GOOD if ranks else BAD)),
    ]


def turn_rows(result: Demonstration) -> list[tuple[str, Text]]:
    """Rows of the agent's turns: thought, search, passages, answer."""
    question, rows = result.steps.question, list[tuple[str, Text]]()
    for thought, search in zip(result.thoughts, result.steps.searches, strict=False):
        rows += [("think", Text(as_written(thought), style="cyan")), ("search", Text(as_written(search.query)))]
        rows += [("1", highlighted(hit.passage, question)) for hit in search.hits[:1]]
        titles = ", ".join(as_written(hit.passage.title) for hit in search.hits[1:])
        rows += [("2, 3", Text(titles, style=FAINT))] if titles else []
    answer = result.steps.answer or ""
    right = exact_match(answer, question.answers)
    verdict = Text(f"{as_written(answer)} ({'right' if right else 'wrong'})", style=GOOD if right else BAD)
    return [*rows, ("think", Text(as_written(result.thoughts[-1]), style="cyan")), ("answer", verdict)]


def highlighted(passage: Passage, question: Question) -> Text:
    """The text of a passage, with the answer highlighted."""
    text = Text(as_written(passage.text))
    text.highlight_words([as_written(answer) for answer in question.answers], GOOD)
    return text


def program_name() -> str:
    """The word that starts this program in the user's shell."""
    program = Path(sys.argv[0])
    executable = which(program.name)
    on_path = executable is not None and Path(executable).resolve() == program.resolve()
    if program.name != "coseek" or on_path:
        return "coseek"
    return shell_word(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def grid(*rows: tuple[str, Text]) -> Table:
    """A table of two columns without lines: label and text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style=FAINT, min_width=9)
    table.add_column()
    for label, text in rows:
        table.add_row(Text(label), text)
    return table
