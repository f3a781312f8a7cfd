"""Train an encoder on an agent's searches, and search with it: world → runs → labels → encoder → index.

    python examples/train_encoder.py FOLDER [steps=N] [questions=N]

The defaults train a small encoder from nothing for two minutes: it finds less than BM25, which generated worlds suit.
`coseek.train_retriever("two-cores", labels=…)` trains MiniLM in the same way.
"""

import sys
from pathlib import Path

import coseek

SHAPE = {"encoder": None, "query_tokens": 64, "passage_tokens": 96, "view": "question+query"}
"""An encoder that is made from nothing, and the texts that it reads."""


def recall(data: coseek.Dataset, retriever: Path, folder: Path) -> float:
    """The share of gold passages that the agent finds with this retriever on the test questions."""
    run = coseek.run_agent(data.folder, "expert", retriever, folder, split="test", limits={"passages_per_search": 1})
    rewards = coseek.score(run.trajectories(), {"gold_recall": 1.0})
    values = [reward.value for reward in rewards if isinstance(reward, coseek.Reward)]
    return sum(values) / len(values)


def main(folder: Path, steps: int = 300, questions: int = 1500) -> None:
    """Every step leaves a folder that the commands read, too."""
    data = coseek.make_world(folder / "world", size="compact", train=questions, dev=0, test=100)
    coseek.build_index(data.folder, "bm25", folder / "bm25")

    # What the agent searched for, with the gold passage of each turn as the positive.
    run = coseek.run_agent(data.folder, "expert", folder / "bm25", folder / "run", split="train")
    labelled = coseek.label(run.folder, "gold", folder / "labels", {"negatives": 4})
    print(f"labels: {labelled.sets} of {labelled.turns} searches")

    training = {"training.steps": steps, "training.batch_size": 64, "training.optimizer": {"lr": 3e-3}}
    encoder = coseek.train_retriever(
        "laptop", {**SHAPE, **training, "held_out.turns": 100}, labels=folder / "labels", out=folder / "training"
    )
    coseek.build_index(data.folder, "dense", folder / "dense", {"encoder": str(encoder)})

    for name in ("bm25", "dense"):
        print(f"{name}: {recall(data, folder / name, folder / f'run-{name}'):.2f} of the gold passages found")


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[2:])
    main(Path(sys.argv[1]), **{name: int(value) for name, value in given.items()})
