"""Does an agent learn as much from questions made of passages as from true ones?

    python -m bench.synthetic_agent [--seeds 0 1 2] [--out runs/synthetic-agent] [--warm FOLDER] [SETTING=VALUE …]

In the quickstart's world with its questions hidden, questions are made of its passages (`coseek data synthesize`). Both
arms start from one policy, which has seen other worlds alone: the quickstart's warm one of that seed, or that of
`--warm`, which then learns the wording of made questions beside that of true ones from demonstrations in another world,
with the same faults. One arm is trained on true questions, one on as many made ones, by the recipe's reinforcement
learning; both are measured on the true test questions, greedily. Bar: over the seeds, the gain in EM from made
questions is at least .9 of that from true ones. Exit 1 when it is missed. An arm takes about as long as the second half
of a quickstart; what is there already is kept, and a run that was stopped is gone on with.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from bench.methods import shown
from bench.seeds import Scores, run_seed

from coseek.core.files import JsonObject, atomic_folder, read_yaml
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.question import Question, save_questions
from coseek.measure.table import Table
from coseek.synthesis.settings import SynthesisSettings
from coseek.synthesis.synthesis import synthesize
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

RECIPE, SET, LEAST = "quickstart", "test", 0.9
DEMONSTRATIONS = "sft-laptop"
OTHER_WORLD = 99
"""Seed of the world of the demonstrations."""
DEMONSTRATED = (
    "warm_start.worlds=0", "warm_start.one_shot=0", "warm_start.sft.steps=600", "warm_start.sft.curriculum=[]",
    "table.questions=100",
)  # fmt: skip
ARMS = ("true", "made")
COLUMNS = ("seed", "questions", "EM before", "gain, true questions", "gain, made questions", "share")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/synthetic-agent"))
    parser.add_argument("--warm", type=Path, help="a run of the quickstart, for its world and its warm policy")
    parser.add_argument("--count", type=int, default=2000, help="questions to make, at most")
    given, settings = parser.parse_known_args(arguments)
    rows: list[tuple[str, ...]] = []
    gains: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in given.seeds:
        start = given.warm or run_seed(RECIPE, seed, given.out / "warm", settings).folder
        sets, count = questions_of(start / "data", given.out / f"data-{seed}", given.count, seed)
        reader = warmed(start, given.out, given.count, 0 if given.warm else seed, settings)
        scores: dict[str, Scores] = {}
        for arm in ARMS:
            words = [started(reader), "warm_start=null", in_folder(sets / arm), *settings]
            scores[arm] = Scores.read(run_seed(RECIPE, seed, given.out / arm, words).folder, SET, "em", "all")
            gains[arm].append(scores[arm].gains["after"]["mean"])
        share = gains["made"][-1] / gains["true"][-1] if gains["true"][-1] else float("nan")
        told = (shown(scores[arm].gains["after"]) for arm in ARMS)
        rows.append((str(seed), f"{count:,}", f"{scores['true'].summaries['before']:.3f}", *told, f"{share:.2f}"))
    true, made = (statistics.mean(gains[arm]) for arm in ARMS)
    bar = f"Mean gains: true {true:+.3f}, made {made:+.3f} (bar: at least {LEAST} of it)."
    print(Table(COLUMNS, tuple(rows), (bar,)).markdown())
    return 0 if true > 0 and made >= LEAST * true else 1


def started(policy: Path) -> str:
    return f"policy={{folder: {policy}, marks: false, words: 0}}"


def in_folder(data: Path) -> str:
    return f"data={{folder: {data}, world: null, unseen: null}}"


def warmed(start: Path, out: Path, most: int, seed: int, settings: Sequence[str]) -> Path:
    """The warm policy of a run after demonstrations of true and of made questions in another world."""
    tree = cast(JsonObject, read_yaml(start / "recipe.yaml", "recipe")["recipe"])
    own = make_settings(WorldSettings, cast(JsonObject, cast(JsonObject, tree["data"])["world"]), start)
    world, both = out / "other-world", out / "other-both"
    if not world.exists():
        make_world(own.model_copy(update={"seed": OTHER_WORLD})).save(world)
    sets, _ = questions_of(world, out / "other", most, OTHER_WORLD)
    asked = [one for arm in ARMS for one in Dataset(sets / arm).questions("train")]
    save_set(both, Dataset(world), asked)
    words = [started(start / "policy" / "warm"), in_folder(both), *DEMONSTRATED, *settings]
    return run_seed(DEMONSTRATIONS, seed, out / "reader", words).folder / "policy" / "warm"


def questions_of(world: Path, out: Path, most: int, seed: int) -> tuple[Path, int]:
    """The folder of two data sets, and their training questions: true ones and as many made ones. Both have one corpus
    and the true dev and test questions."""
    source = Dataset(world)
    made = out / "synthesis"
    if not made.exists():
        hidden = out / "passages"
        source.corpus.save(hidden / "corpus.jsonl")
        synthesize(hidden, made, SynthesisSettings(count=most, dev=0, test=0, unanswerable=0, seed=seed))
    asked: dict[str, list[Question]] = {"true": source.questions("train"), "made": Dataset(made).questions("train")}
    count = min(map(len, asked.values()))
    for arm, questions in asked.items():
        save_set(out / arm, source, random.Random(f"{seed} {arm}").sample(questions, count))
    return out, count


def save_set(folder: Path, source: Dataset, questions: Sequence[Question]) -> None:
    """Write a data set with other training questions, unless it is there."""

    def fill(part: Path) -> None:
        source.corpus.save(part / "corpus.jsonl")
        save_questions(part / "questions.train.jsonl", questions)
        for split in ("dev", "test"):
            save_questions(part / f"questions.{split}.jsonl", source.questions(split))

    if not folder.exists():
        atomic_folder(folder, fill)


if __name__ == "__main__":
    sys.exit(main())
