"""The real data sets that several benches ask, and where their tables go."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.agents.drivers import Agent
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question
from coseek.models.tokenizer import ByteTokenizer

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT.parent / "shared" / "data"
"""Folder of the raw files."""
PLENTY = 1_000_000


@dataclass(frozen=True, slots=True)
class RealSet:
    """One data set: where it comes from, and how many passages it must have."""

    name: str
    format: str
    sources: tuple[str, ...]
    passages: int

    def imported(self, data: Path, folder: Path) -> Dataset:
        """The set as a folder of ours, made when it is not there."""
        if not folder.exists():
            import_data(self.format, [data / source for source in self.sources], folder)
        dataset = Dataset(folder)
        if len(dataset.corpus) != self.passages:
            raise SystemExit(
                f"{self.name} has {len(dataset.corpus)} passages, not {self.passages}: are the files complete?"
            )
        return dataset

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return self.name.replace(" ", "-")


SETS = {
    real.name: real
    for real in (
        RealSet("hotpotqa-pool500", "hotpotqa", ("hotpotqa-pool500",), 4_937),
        RealSet("hipporag hotpotqa", "hotpotqa", ("hipporag-train100",), 994),
        RealSet("hipporag musique", "musique", ("hipporag-train100",), 1_890),
        RealSet("2wiki", "2wiki", ("2wiki-train500",), 3_112),
        # 3,112 own and 6,119 distractors, of which 483 are own passages of some question
        RealSet("2wiki + distractors", "2wiki", ("2wiki-train500", "hipporag-2wiki-corpus"), 8_748),
        RealSet("qed", "qed", ("qed",), 1_343),
        RealSet("xquad en", "squad", ("xquad/xquad.en.json.gz",), 240),
        RealSet("xquad zh", "squad", ("xquad/xquad.zh.json.gz",), 240),
    )
}


def questions_of(dataset: Dataset) -> list[Question]:
    """All questions, whatever their split."""
    return [question for split in dataset.splits for question in dataset.questions(split)]


def rules_agent(protocol: Protocol | None = None) -> Agent:
    """The agent without a model."""
    spoken = protocol or load_protocol("search-r1")
    return Agent(spoken, ScriptedAgentModel(RuleAgent(), spoken, ByteTokenizer(spoken.grammar.special_tokens)))


def boundless(passages: int) -> Limits:
    """Limits for that agent: bytes, not tokens, would spend the budgets of tokens, and it reads none."""
    return Limits(
        passages_per_search=passages, max_turn_tokens=PLENTY, max_observation_tokens=PLENTY, max_tokens=100 * PLENTY
    )


def write_table(docs: Path, command: str, tables: Sequence[str]) -> None:
    """Put tables between the markers that name the command; a page without them is left as it is."""
    begin, end = f"<!-- table: {command} -->", "<!-- end of table -->"
    before, mark, rest = docs.read_text(encoding="utf-8").partition(begin)
    if mark:
        _, _, after = rest.partition(end)
        docs.write_text(f"{before}{begin}\n\n" + "\n\n".join(tables) + f"\n{end}{after}", encoding="utf-8")
