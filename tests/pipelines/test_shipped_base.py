"""The shipped base model is what its card says, and a policy can start from it."""

import re
from pathlib import Path

import pytest

from coseek.core.fingerprint import file_digest
from coseek.graders.factory import open_generator
from coseek.graders.generator import GeneratorSettings
from coseek.lab.pipelines.base import BaseTraining
from coseek.lab.pipelines.reader_recipes import BaseRecipe
from coseek.lab.training.examples import ExampleSampler
from coseek.models.model_folder import model_path

BASE = model_path("base")
QUESTIONS = 60


def test_the_shipped_base_is_the_file_that_its_card_names() -> None:
    card = (BASE / "README.md").read_text()
    assert file_digest(BASE / "model.safetensors") in card
    assert "license: apache-2.0\n" in card and "\ncoseek train base" in card


@pytest.mark.slow
def test_the_shipped_base_reads_a_world_of_held_out_relations_as_its_card_says(tmp_path: Path) -> None:
    training, generator = BaseTraining(BaseRecipe(), tmp_path), open_generator(GeneratorSettings(model="base"))
    right = training.right_by_hops(generator, ExampleSampler.of_world(training.held_out, "test"), QUESTIONS)
    row = re.compile(r"\| read a drawn world, hops: (\d) \| ([\d.]+) ")
    told = {int(hops): float(share) for hops, share in row.findall((BASE / "README.md").read_text())}
    assert told.keys() == right.keys()
    shares = [told[hops] for hops, values in right.items() for _ in values]
    deviation = sum(share * (1 - share) for share in shares) ** 0.5
    assert abs(sum(map(sum, right.values())) - sum(shares)) < 3 * deviation
