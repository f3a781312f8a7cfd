"""The commands of the kill campaign: everything that takes time, in the smallest settings that pass all its stages."""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from bench.kill_place import Place
from tests.pipelines.small_together import LENGTH

from coseek.core.files import JsonObject, write_jsonl

POLICY: JsonObject = {"hidden": 32, "layers": ["conv", "full_attention"], "heads": 2, "kv_heads": 1, "feed_forward": 32,
          "vocabulary": 700}  # fmt: skip
SFT: JsonObject = {"steps": 4, "repeat_steps": 1, "rounds": 1, "tokens_per_step": 1000, "checkpoint_every": 2,
       "gate": None, "log_every": 1}  # fmt: skip
AGENT: JsonObject = {
    "extends": "from-nothing",
    "data": {"world": {"seed": 3, "size": "tiny", "train": 20, "dev": 6, "test": 6}, "unseen": None},
    "limits": {"max_turns": 2, "passages_per_search": 2, "max_turn_tokens": 24, "max_observation_tokens": 80,
               "max_tokens": 384},
    "policy": {"laptop": POLICY},
    "warm_start": {"worlds": 1, "world": {"size": "tiny", "train": 12, "dev": 0, "test": 0}, "sft": SFT},
    "rl": {"steps": 3, "questions_per_step": 2, "group_size": 2, "checkpoint_every": 1, "evaluate_every": 2,
           "keep_rollouts": {"every": 1}},
    "reward": {"exact_match": 1.0, "gold_recall": 0.5, "valid": 0.3, str(LENGTH): 0.1},
    "table": {"questions": 2, "dev_questions": 2},
    "threads": 1,
}  # fmt: skip
TRAINING: JsonObject = {"steps": 4, "batch_size": 8, "checkpoint_every": 1, "log_every": 1}
ENCODER: JsonObject = {
    "encoder": None,
    "laptop": {"hidden": 32, "heads": 2, "feed_forward": 32, "vocabulary": 600},
    "synthetic": {"worlds": 1, "world": {"size": "tiny", "train": 30, "dev": 0, "test": 0},
                  "held_out": {"seed": 8, "size": "tiny", "train": 0, "dev": 10, "test": 0}},
    "training": TRAINING, "held_out": {"turns": 8, "passages": 40},
}  # fmt: skip
DIRECT: JsonObject = {"worlds": 0, "one_shot": 0.0}
TOGETHER: JsonObject = {
    "agent": {**AGENT, "protocol": "s3",
              "limits": {"max_turns": 2, "passages_per_search": 2, "max_turn_tokens": 64,
                         "max_observation_tokens": 120, "max_tokens": 448},
              "reward": {"gold_recall": 0.5, "valid": 0.3, str(LENGTH): 1.0},
              "policy": {"folder": "in/policy", "marks": True},
              "warm_start": {**DIRECT, "sft": {**SFT, "repeat_steps": 0, "curriculum": [],
                                               "learner": {"optimiser": {"lr": 1.0e-4}}}}},
    "start": {"recipe": ENCODER},
    "labels": {"method": "gold", "questions": 12, "samples": 2},
    "retriever": {"view": "question+query", "training": TRAINING,
                  "held_out": {"turns": 8, "passages": 40, "share": 0.3}},
    "stop": {"questions": 2, "least": -1.0}, "pairs": {"questions": 2}, "rounds": 1, "threads": 1,
}  # fmt: skip
"""An s3 run opens with a search of the environment, so there is something to label whatever the policy has learnt; and
sampled texts differ in length, so weights move."""
GENERATOR: JsonObject = {
    "worlds": 1, "world": {"size": "tiny", "train": 20, "dev": 0, "test": 0},
    "held_out": {"seed": 8, "size": "tiny", "train": 0, "dev": 4, "test": 4}, "laptop": POLICY,
    "sft": {**SFT, "varied_steps": 0}, "max_answer_tokens": 6, "threads": 1,
    "table": {"dev_questions": 2, "questions": 2},
}  # fmt: skip
BASE: JsonObject = {
    "tasks": {"worlds": 2, "world": {"size": "tiny", "lexicon": "drawn", "train": 12, "dev": 0, "test": 0}},
    "held_out": {"size": "tiny", "lexicon": "drawn", "train": 0, "dev": 4, "test": 4, "seed": 1},
    "laptop_world": {"size": "tiny", "train": 0, "dev": 4, "test": 4, "seed": 8},
    "laptop": {name: one for name, one in POLICY.items() if name != "vocabulary"},
    "sft": {"steps": 4, "repeat_steps": 1, "varied_steps": 0, "tokens_per_step": 1000, "evaluate_every": 0,
            "checkpoint_every": 2},
    "max_answer_tokens": 6, "threads": 1, "tokenizer_worlds": 1, "table": {"dev_questions": 2, "questions": 2},
}  # fmt: skip
SIMULATOR: JsonObject = {
    "model": "in/generator/generator", "runs": ["in/run"], "document_words": 20,
    "sft": {"steps": 4, "tokens_per_step": 1000, "repeat_steps": 0, "checkpoint_every": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One row of the table. Words refer to `in`, the inputs; `URL` stands for a served retriever."""

    name: str
    words: str
    resume: str = ""
    """Words that the second start has more; without any it is the same command again."""
    more: tuple[str, ...] = ()
    """Settings, which may hold blanks."""
    before: str = ""
    """A command that comes first and is not disturbed, such as the index that is brought up to date."""

    @property
    def first(self) -> list[str]:
        return [*self.words.split(), *self.more]

    @property
    def second(self) -> list[str]:
        return [*self.first, *self.resume.split()]

    @property
    def asks_a_server(self) -> bool:
        return "URL" in self.words


def settings(tree: JsonObject) -> tuple[str, ...]:
    """Trees as words of a command; groups replace those of the recipe."""
    return tuple(f"{name}={'!replace ' * isinstance(value, dict)}{json.dumps(value)}" for name, value in tree.items())


def _index(name: str, *more: str) -> Command:
    return Command(f"index-{name}", f"index in/world --retriever {name} --out made --encoder in/encoder", more=more)


R = "--resume"
COMMANDS = (
    Command("world", "world make made --size tiny"),
    Command("import-beir", "data import beir in/beir --out made"),
    Command("import-documents", "data import documents in/notes --out made"),
    Command("import-traces", "data import traces in/messages.jsonl --out made"),
    Command("synthesize", "data synthesize in/world count=20 --out made"),
    Command("export-messages", "data export in/run --format messages --out made.jsonl"),
    Command("export-atif", "data export in/run --format atif --out made"),
    Command("export-inspect", "data export in/run --format inspect --out made.eval"),
    Command("index-bm25", "index in/world --out made"),
    _index("dense", "batch_size=8"),
    _index("hnsw", "batch_size=8"),
    _index("ivf-pq", "batch_size=8"),
    Command(
        "index-update", "index in/world --out made --update", before="index in/less --out made --encoder in/encoder "
        "--retriever dense batch_size=8",
    ),
    Command("run", "run in/world --split dev --agent faulty-expert --retriever in/bm25 --samples 3 --out made", R),
    Command("run-model", "run in/world --split dev --agent in/policy --retriever in/bm25 --count 3 --out made", R),
    Command("run-served", "run in/world --split dev --agent expert --retriever URL --samples 3 --out made", R),
    Command("label-gold", "label in/run --method gold --out made", R),
    Command("label-agentic-r", "label in/run --method agentic-r --scorer oracle --out made", R),
    Command("label-served", "label in/run --method agentic-r --scorer oracle --retriever URL --out made", R),
    Command("score", "score in/run in/run2 --judge in/world --out made"),
    Command("score-generator", "score in/run --answer-with in/generator/generator --cache made.sqlite --out made"),
    Command("measure", "measure in/world in/bm25 --split dev --trec-out made --per-question each.jsonl"),
    Command("leaderboard", "leaderboard in/run in/run2 --out made"),
    Command("study", "study combination-gain in/run --retriever in/bm25 --answer-with in/generator/generator --ks 1,2 "
            "--out made"),
    Command("audit-corpus", "audit corpus in/world --out made.json"),
    Command("audit-run", "audit in/run --retriever in/bm25"),
    Command("view", "view in/run in/run2 --out made.html"),
    Command("push", "push in/policy some/policy --hub in/pushed --license other"),
    Command("pull", "pull some/world made --hub in/hub"),
    Command("doctor", "doctor"),
    Command("dry-run", "train agent in/agent.yaml --dry-run"),
    Command("quickstart", "quickstart --out made", R, settings({k: v for k, v in AGENT.items() if k != "extends"})),
    Command("train-grpo", "train agent in/agent.yaml --out made", R),
    Command("train-ppo", "train agent in/agent.yaml --out made", R, ("rl.algorithm=ppo", "rl.kl=0.01")),
    Command("train-s3", "train agent in/s3.yaml --out made", R),
    Command("train-retriever", "train retriever in/retriever.yaml --labels in/labels --out made", R),
    Command("train-encoder", "train retriever in/encoder.yaml --out made", R),
    Command("train-together", "train together in/together.yaml --out made", R),
    Command("train-generator", "train generator --out made", R, settings(GENERATOR)),
    Command("train-base", "train base --out made", R, settings(BASE)),
    Command("train-simulator", "train simulator --out made", R, settings(SIMULATOR)),
)  # fmt: skip


PARTS: JsonObject = {"labels": "in/labels", "encoder": "in/encoder", "view": "query", "training": TRAINING,
                     "held_out": {"turns": 4, "passages": 30, "share": 0.3}}  # fmt: skip
S3: JsonObject = {
    **AGENT, "extends": "s3-laptop", "policy": {"folder": "in/policy"}, "select": {"most": 6},
    "graders": {"generator": {"model": "in/generator/generator"}, "baseline": {"passages": 1}},
    "reward": {"gbr": 1.0, "gold_recall": 0.5, "valid": 0.3, str(LENGTH): 0.1},
}  # fmt: skip
RECIPES = {"agent": AGENT, "s3": S3, "retriever": PARTS, "encoder": ENCODER, "together": TOGETHER}
ANSWERS = "run in/world --split dev --retriever in/bm25 --agent"
STOCK = (
    ("in/world", "world make in/world --size tiny train=30 dev=12 test=6"),
    ("in/bm25", "index in/world --out in/bm25"),
    ("in/run", f"{ANSWERS} faulty-expert --out in/run"),
    ("in/run2", f"{ANSWERS} rules --out in/run2"),
    ("in/labels", "label in/run --method gold --out in/labels"),
    ("in/messages", "data export in/run --format messages --out in/messages.jsonl"),
    ("in/hub", "push in/world some/world --hub in/hub --license other"),
    ("in/generator", f"train generator --out in/generator {shlex.join(settings(GENERATOR))}"),
    ("in/policy", "train agent in/agent.yaml learn=demonstrations --out in/made-policy"),
)
"""Inputs that commands make, each from those above it."""


def stock(place: Place, commands: Sequence[Command]) -> None:
    """Make the inputs of these commands."""
    asked = " ".join(f"{command.words} {' '.join(command.more)} {command.before}" for command in commands)
    asked += "".join(json.dumps(tree) for name, tree in RECIPES.items() if f"in/{name}.yaml" in asked)
    steps = []
    for made, words in reversed(STOCK):
        if made in asked or made in ("in/world", "in/bm25"):
            steps.append(words)
            asked += words
    place.pantry.mkdir(parents=True)
    place.fresh()
    _made_here(place.work / "in")
    for words in reversed(steps):
        done = place.run(shlex.split(words))
        if done.code:
            raise RuntimeError(f"coseek {words}: {done.said}")
        if words.startswith("world"):
            _other_forms(place.work / "in")
    if (run := place.work / "in/made-policy").exists():
        (run / "policy/warm").rename(place.work / "in/policy")
        shutil.rmtree(run)  # else every trial copies and compares it
    place.pantry.rmdir()
    (place.work / "in").rename(place.pantry)


def _made_here(into: Path) -> None:
    """Recipes, an encoder with random weights, and folders that stand for a hub."""
    from tests.retrieval.tiny_encoder import make_encoder

    for name in ("hub", "pushed"):
        (into / name).mkdir()
    make_encoder(into / "encoder")
    for name, tree in RECIPES.items():
        (into / f"{name}.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")


def _other_forms(into: Path) -> None:
    """A part of the corpus, a BEIR set, and a folder of documents."""
    rows = [json.loads(line) for line in (into / "world/corpus.jsonl").read_text().splitlines()]
    write_jsonl(into / "less/corpus.jsonl", rows[:-20])
    plain = [{"_id": str(row["id"]), "title": "", "text": row.get("contents") or row["text"]} for row in rows]
    write_jsonl(into / "beir/corpus.jsonl", plain)
    write_jsonl(into / "beir/queries.jsonl", ({"_id": f"q{n}", "text": f"what is {n}?"} for n in range(9)))
    (into / "beir/qrels").mkdir()
    marks = "".join(f"q{n}\t{plain[n]['_id']}\t1\n" for n in range(9))
    (into / "beir/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{marks}")
    (into / "notes").mkdir()
    for number, row in enumerate(plain[:40]):
        (into / f"notes/{number}.md").write_text(f"# Note {number}\n\n{row['text']}\n")
