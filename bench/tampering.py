"""Changed runs: how many harmful changes `coseek audit` finds in stored runs, and whether it flags harmless ones.

    python -m bench.tampering --changes 2000          some minutes on one core

Makes a small run of each kind of agent (a rule-based one, a sampled model, a tiny network) under several protocols.
Each change is made to a copy of one of them, and audited twice: as the run is written now, and as an older version
wrote it, without digests, where only what follows from the agent's tokens and the hits can be noticed. Exits 1 below
the bar: .995 of the harmful changes found, no traceback, no harmless change flagged.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.tampering_changes import HARMFUL, HARMLESS, Change, Stored

from coseek.agents.factory import AgentSettings, limits_for, settings_for, stored_tokenizer, turn_identities
from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent
from coseek.agents.run_questions import run_questions
from coseek.agents.scripted.expert import ExpertAgent
from coseek.agents.scripted_model import ScriptedAgentModel
from coseek.core.errors import UserError
from coseek.core.files import JsonObject, read_jsonl, read_yaml, write_json
from coseek.core.settings import dump_settings
from coseek.data.run import Run
from coseek.data.run_seal import DIGEST, SEAL
from coseek.measure.table import Table
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model import Request, Tokenizer, Turn
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_run import RunSettings, load_asked, run_agent
from coseek.pipelines.run_audit import audit_stored_run
from coseek.retrieval.factory import describe_retriever, open_retriever
from coseek.retrieval.index import build_index
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

BAR = 0.995
PER_HARMLESS = 10
"""Harmful changes to one harmless one."""
RULES, SAMPLED, NETWORK = "rules", "sampled", "network"
RUNS = (
    (RULES, "search-r1"),
    (RULES, "qagent"),
    (RULES, "s3"),
    (RULES, "react"),
    (RULES, "search-o1"),
    (SAMPLED, "search-r1"),
    (SAMPLED, "qagent"),
    (SAMPLED, "s3"),
    (SAMPLED, "react"),
    (SAMPLED, "search-o1"),
    (NETWORK, "search-r1"),
    (NETWORK, "r1-searcher"),
)
"""Agents and their protocols."""
TEMPERATURE = 1.0


class Sampled(ScriptedAgentModel):
    """An agent that mostly knows its way, with the log-probabilities of a sampled model; some turns break off."""

    def _write(self, request: Request) -> Turn:
        turn, rng = super()._write(request), random.Random(f"{request.seed}/{len(request.ids)}")
        ids = turn.ids[: rng.randrange(1, len(turn.ids) + 1)] if turn.ids and rng.random() < 0.1 else turn.ids
        return Turn(turn.key, ids, tuple(-rng.expovariate(3.0) for _ in ids), turn.end)


@dataclass
class Figures:
    """What the audits found, by kind of change."""

    made: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    derived: Counter[str] = field(default_factory=Counter)
    """Found without digests."""
    flagged: list[str] = field(default_factory=list)
    """Harmless changes that were taken for harmful ones."""
    tracebacks: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.found.total() / max(1, self.made.total())

    @property
    def good(self) -> bool:
        return self.share >= BAR and not self.flagged and not self.tracebacks

    def table(self) -> Table:
        kinds = sorted(self.made)
        counted = [(kind, self.made[kind], self.found[kind], self.derived[kind]) for kind in kinds]
        whole = ("all", self.made.total(), self.found.total(), self.derived.total())
        rows = tuple(tuple(map(str, row)) for row in (*counted, whole))
        notes = (f"{len(self.flagged)} harmless changes flagged, {len(self.tracebacks)} tracebacks.",)
        return Table(("change", "made", "found", "found without digests"), rows, notes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=2000, help="harmful changes")
    parser.add_argument("--questions", type=int, default=4, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a .json file for the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(scratch), RUNS, args.questions)
        figures = measure(runs, Path(scratch) / "changed", args.changes, args.seed)
    print(figures.table().markdown())
    for line in (*figures.flagged, *figures.tracebacks):
        print(line)
    print(f"found: {figures.share:.4f} of {figures.made.total()} harmful changes")
    if args.out is not None:
        kinds: JsonObject = {
            kind: [figures.made[kind], figures.found[kind], figures.derived[kind]] for kind in sorted(figures.made)
        }
        write_json(args.out, {"share": figures.share, "kinds": kinds, "good": figures.good})
    return 0 if figures.good else 1


def make_runs(base: Path, kinds: Sequence[tuple[str, str]], count: int) -> list[Path]:
    """A run of each kind of agent under its protocol, of `count` questions."""
    world = make_world(WorldSettings(size="tiny", train=4, dev=4, test=max(4, count)))
    world.save(base / "world")
    build_index(base / "world", "bm25", base / "index")
    made: list[Path] = []
    for kind, protocol in kinds:
        policy = base / f"policy-{protocol}"
        if kind == NETWORK:
            texts = [passage.contents for passage in world.corpus]
            shape = LaptopSettings(hidden=32, layers=("conv", "full_attention"), feed_forward=48, vocabulary=400)
            make_policy(shape, texts, load_protocol(protocol).grammar.special_tokens, policy, seed=0)
        name = {RULES: RULES, NETWORK: str(policy)}.get(kind)
        who = settings_for(name, protocol) if name else settings_for("expert", protocol, tokenizer="bytes")
        limits = limits_for(who)
        if kind == NETWORK:  # it never stops by itself
            limits = limits.model_copy(update={"max_turn_tokens": 40})
        elif kind == SAMPLED:  # a name that no file stands for, as that of a policy in training
            who = who.model_copy(update={"name": "policy of step 7"})
        settings = RunSettings(
            questions=str(base / "world"),
            split="test",
            count=count,
            retriever=str(base / "index"),
            agent=who.model_copy(update={"temperature": 0.0 if kind == RULES else TEMPERATURE}),
            limits=limits,
            samples=1 if kind == RULES else 2,
            seed=3,
        )
        made.append(base / f"{kind}.{protocol}")
        if kind == SAMPLED:
            run_sampled(settings, made[-1])
        else:
            run_agent(settings, made[-1], resume=False)
    return made


def run_sampled(settings: RunSettings, out: Path) -> None:
    """The run of a model that no settings can open."""
    retriever, who = open_retriever(settings.retriever), settings.agent
    protocol = load_protocol(who.protocol, who.prompt_template, who.chat_template)
    model = Sampled(ExpertAgent(), protocol, ByteTokenizer(protocol.grammar.special_tokens))
    described = describe_retriever(settings.retriever, retriever)
    run = Run.create(out, {**dump_settings(settings), "index": described})
    agent = Agent(protocol, model, turn_identities(who.model_copy(update={"name": "expert"}), model))
    run_questions(
        run, agent, retriever, load_asked(settings), settings.limits, seed=settings.seed, samples=settings.samples
    )


def measure(runs: Sequence[Path], place: Path, changes: int, seed: int) -> Figures:
    """Make `changes` harmful changes and a share of harmless ones, and audit each."""
    figures = Figures()
    for run in runs:
        for bound in (True, False):
            audit = audit_of(stored(run, bound), place, figures)
            if audit != 0:
                figures.flagged.append(f"{run.name}, as it was made, {'with' if bound else 'without'} digests")
    number = 0
    while figures.made.total() < changes:
        rng = random.Random(f"{seed}/{number}")
        run, kind = rng.choice(runs), HARMFUL[number % len(HARMFUL)]
        number += 1
        if number % PER_HARMLESS == 0:
            harmless(figures, run, place, random.Random(f"{seed}/harmless/{number}"))
        harmful(figures, run, place, kind, rng, runs)
    return figures


def harmful(figures: Figures, run: Path, place: Path, kind: Change, rng: random.Random, runs: Sequence[Path]) -> None:
    """Make one change twice, with and without digests; a change that changed nothing does not count."""
    state = rng.getstate()
    for bound in (True, False):
        rng.setstate(state)
        one = stored(run, bound)
        one.other = stored(runs[rng.randrange(len(runs))], bound).rows
        before = one.content()
        kind(one, rng)
        if one.content() == before:
            return
        found = audit_of(one, place, figures) != 0
        figures.made[kind.__name__] += bound
        (figures.found if bound else figures.derived)[kind.__name__] += found


def harmless(figures: Figures, run: Path, place: Path, rng: random.Random) -> None:
    """Make one change of the spelling alone."""
    kind = rng.choice(HARMLESS)
    for bound in (True, False):
        one = stored(run, bound)
        kind(one, rng)
        if audit_of(one, place, figures) != 0:
            figures.flagged.append(f"{run.name}: {kind.__name__}, {'with' if bound else 'without'} digests")


def stored(run: Path, bound: bool) -> Stored:
    """A run's content, with its digests or as an older version wrote it."""
    rows = [row for _, row in read_jsonl(run / "trajectories.jsonl")]
    record = read_yaml(run / "run.yaml", "run file")
    if not bound:
        record.pop(SEAL)
        rows = [{name: value for name, value in row.items() if name != DIGEST} for row in rows]
    return Stored(rows, record, tokenizer_of(run))


@cache
def tokenizer_of(run: Path) -> Tokenizer:
    """The tokenizer of a run's agent."""
    tokenizer = stored_tokenizer(AgentSettings.model_validate(Run(run).settings["agent"]))
    assert tokenizer is not None
    return tokenizer


def audit_of(one: Stored, place: Path, figures: Figures) -> int:
    """Write a run and audit it: the number of violations; 1 where it is refused."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "trajectories.jsonl").write_bytes(one.lines())
    (place / "run.yaml").write_text(one.spelt_record(), encoding="utf-8")
    try:
        return audit_stored_run(place).count
    except UserError:  # one sentence and exit 2
        return 1
    except Exception as error:  # noqa: BLE001 (any other one is a traceback, which is what is counted)
        figures.tracebacks.append(f"{type(error).__name__}: {error}"[:300])
        return 1


if __name__ == "__main__":
    sys.exit(main())
