"""A pre-trained language model with its own tokenizer and template: `make test-real`."""

from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from coseek.agents.drivers import rollout
from coseek.agents.factory import open_agent, settings_for
from coseek.agents.limits import Limits
from coseek.core.files import write_jsonl
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory_checks import check_trajectory
from coseek.graders.factory import open_generator
from coseek.graders.generator import GeneratorSettings
from coseek.models.text_model import TextModelSettings
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.dry_run import dry_run
from coseek.retrieval.retrievers.bm25 import Bm25

FOLDER = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER.is_dir(), reason="make test-real")]
ROME = Passage("rome", "Rome", "Rome was founded by Romulus, who was a son of Mars.")
QUESTION = Question("q", "Who founded Rome?", ("Romulus",), ("rome",), hops=1)


def test_it_reads_a_passage() -> None:
    generator = open_generator(GeneratorSettings(model=str(FOLDER)), None, TextModelSettings(device="cpu"))
    (reply,) = generator.answer([generator.context(QUESTION.question, (ROME,))])
    assert "Romulus" in (reply.answer or "")


def test_our_greedy_text_is_that_of_generate() -> None:
    settings = settings_for(str(FOLDER), "direct", device="cpu").model_copy(update={"precision": "float32"})
    agent = open_agent(settings)
    (run,) = rollout(agent, Bm25.over(Corpus([ROME])), [QUESTION], [0], Limits(max_turn_tokens=24))
    check_trajectory(run)
    prompt, written = run.segments[0].ids, [ident for segment in run.segments[1:] for ident in segment.ids]
    model = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32))
    read = torch.tensor([prompt])
    whole = model.generate(  # type: ignore[operator]
        read, attention_mask=torch.ones_like(read), do_sample=False, max_new_tokens=24
    )
    assert written == whole[0, len(prompt) :].tolist()[: len(written)]


@pytest.mark.parametrize("recipe", ["smollm", "search-r1-grpo", "rejection-sampling", "s3", "qagent"])
def test_each_recipe_takes_a_step_in_small(recipe: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [{**ROME.to_json()}])
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"questions.{split}.jsonl", [QUESTION.to_json()])
    grader = [f"graders.generator.model={FOLDER}"] if recipe in ("s3", "qagent") else []
    preset = [] if recipe == "smollm" else ["preset=smollm"]
    report = dry_run(load_recipe(recipe, [*preset, f"data.folder={tmp_path}", f"policy.folder={FOLDER}", *grader]))
    report.refuse()
    assert any("went through" in map(str, row) for row in report.tables[0].rows)
