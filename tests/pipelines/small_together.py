"""A small co-training, for tests: what is run, and what it leaves behind."""

from pathlib import Path

from tests.digests import digest

from coseek.core.progress import Progress
from coseek.labels.makers import agentic_r as agentic_r  # loaded once, so that all runs have the same
from coseek.pipelines.together.together import CoTraining, Results
from coseek.pipelines.together_recipe import TogetherRecipe, load_together_recipe

SMALL = """
agent:
  extends: from-nothing
  protocol: s3
  data:
    world: {seed: 3, size: tiny, train: 60, dev: 8, test: 8, hop_mix: [1.0], comparison: 0.0, constraint: 0.0}
  limits: {max_turns: 2, passages_per_search: 2, max_turn_tokens: 24, max_observation_tokens: 120, max_tokens: 448}
  policy: {laptop: {hidden: 64, layers: [conv, full_attention], feed_forward: 128, vocabulary: 1200}}
  warm_start:
    worlds: 0
    one_shot: 0.0
    sft:
      steps: 4
      repeat_steps: 0
      rounds: 1
      gate: null
      curriculum: []
      tokens_per_step: 1500
      checkpoint_every: 2
      log_every: 1
      learner: {precision: float32, optimizer: {lr: 1.0e-4}}
  rl:
    steps: 3
    questions_per_step: 4
    group_size: 3
    checkpoint_every: 1
    evaluate_every: 0
    policy: {precision: float32, optimizer: {lr: 1.0e-3}}
  reward: {gold_recall: 0.5, valid: 0.3, LENGTH: 1.0}
  table: {dev_questions: 6}
start:
  recipe:
    encoder: null
    laptop: {hidden: 32, heads: 2, feed_forward: 32, vocabulary: 600}
    synthetic:
      worlds: 2
      world: {size: tiny, train: 60, dev: 0, test: 0}
      held_out: {seed: 8, size: tiny, train: 0, dev: 20, test: 0}
    training: &few {steps: 6, batch_size: 16, checkpoint_every: 2, log_every: 1, optimizer: {lr: 3.0e-3}}
    held_out: {turns: 20, passages: 100}
labels: {method: agentic-r, scorer: oracle, questions: 30, samples: 3, settings: {gac: false}}
retriever:
  view: question+query
  loss: {temperature: 0.05}
  training: *few
  held_out: {turns: 20, passages: 100, share: 0.3}
stop: {questions: 6, min_improvement: -1.0}
pairs: {questions: 6}
threads: 1
"""
"""Nothing here depends on what the policy has learnt. Each s3 run opens with a search of the environment, so each has a
turn to label, by relevance alone; and sampled texts differ in length, so groups have a spread and weights move."""
LENGTH = Path(__file__).with_name("length_reward.py")


def small(folder: Path, *overrides: str) -> TogetherRecipe:
    """The recipe of every run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(SMALL.replace("LENGTH", str(LENGTH)), encoding="utf-8")
    return load_together_recipe(str(path), overrides)


def train(recipe: TogetherRecipe, folder: Path, resume: bool, progress: Progress) -> None:
    """What `coseek train together` does, without a terminal."""
    training = CoTraining(recipe, folder, progress)
    training.begin(resume)
    Results.of(training, training.train()).write()


def outcome(folder: Path) -> dict[str, str]:
    """Path → digest of the tables, weights, vectors, labels and metrics that a run left behind."""
    weights = ("policy/*/model.safetensors", "encoder/model.safetensors")
    names = (*weights, "vectors*/*", "labels.jsonl", "metrics.jsonl")
    found = [*folder.glob("table.*"), *(path for name in names for path in folder.glob(f"round-*/**/{name}"))]
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in found if path.is_file()}
