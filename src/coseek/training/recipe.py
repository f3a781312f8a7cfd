"""Recipe: everything that decides how an agent is trained and measured, in one file. Does not import torch."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from coseek.agents.rollout import Limits
from coseek.agents.writers.expert import ExpertSettings
from coseek.data.registry import yaml_file
from coseek.data.settings import Settings
from coseek.models.laptop import LaptopSettings
from coseek.rewards.reward import RewardSpec
from coseek.training.settings import RlSettings, SftSettings
from coseek.world.settings import WorldSettings

RECIPES = Path(__file__).parent.parent / "recipes"


class ImportSettings(Settings):
    """Real data in somebody else's format."""

    format: str
    """One of the formats of `coseek data import`."""
    sources: tuple[str, ...]
    """Files, or folders of them."""
    shares: dict[str, float] = Field(default={"train": 0.6, "dev": 0.1, "test": 0.3})
    """How the questions are dealt out to splits, by a hash of their ids."""


class DataSettings(Settings):
    """What is searched and asked: exactly one of `world`, `imported` and `folder`."""

    world: WorldSettings | None = None
    """A laptop world, made for the run."""
    imported: ImportSettings | None = None
    """Real data, read for the run."""
    folder: str | None = None
    """A data-set folder that is there already."""
    unseen: WorldSettings | None = None
    """A second laptop world that nothing was trained on, for the last column of the table."""
    retriever: str = "bm25"
    """What searches: a retriever that `coseek index` can build."""
    retriever_settings: dict[str, bool | int | float | str] = Field(default={})
    """Settings of that retriever."""
    train: str = "train"
    """Split that the agent is trained on."""
    dev: str = "dev"
    """Split that is looked at during training."""
    test: str = "test"
    """Split that is looked at once, at the end."""

    @model_validator(mode="after")
    def _one_source(self) -> "DataSettings":
        if sum(source is not None for source in (self.world, self.imported, self.folder)) != 1:
            raise ValueError("give exactly one of data.world, data.imported and data.folder")
        return self


class PolicySettings(Settings):
    """Where the policy comes from."""

    folder: str | None = None
    """A Hugging Face folder to start from; without one a laptop policy is made."""
    laptop: LaptopSettings = LaptopSettings()
    """The laptop policy's shape."""


class WarmStartSettings(Settings):
    """Demonstrations, and supervised training on them."""

    writer: Literal["expert", "rules"] = "expert"
    """Who demonstrates. The expert needs laptop worlds; `rules` works on any corpus."""
    expert: ExpertSettings = ExpertSettings()
    """The expert's faults: what is left for reinforcement learning to mend."""
    worlds: int = Field(default=30, ge=0)
    """Throw-away worlds that the expert demonstrates in, so that no fact can be memorised; 0: the training split."""
    world: WorldSettings = WorldSettings(size="compact", train=400, dev=0, test=0)
    """What a throw-away world is like; its seed is the recipe's, and others for every world."""
    drills: float = Field(default=0.3, ge=0.0)
    """Reading drills in each throw-away world, as a share of its questions; their questions have 0 hops."""
    one_shot: float = Field(default=0.1, ge=0.0, le=1.0)
    """Questions that are also demonstrated in the protocols `direct` and `rag`, as a share: the table's baselines."""
    sft: SftSettings = SftSettings()
    """The supervised training."""


class TableSettings(Settings):
    """The last measurement."""

    questions: int = Field(default=800, ge=1)
    """Questions of each set, at most."""
    dev_questions: int = Field(default=200, ge=1)
    """Questions of the dev split that the gate and the learning curve look at."""
    rag_passages: int = Field(default=4, ge=1)
    """Passages that naive RAG is given."""
    seed: int = 0
    """Seed of the sampled rows at temperature 1, and of the bootstrap."""


class AgentRecipe(Settings):
    """How one agent is trained and measured."""

    about: str = ""
    """One line for people."""
    seed: int = 0
    """Everything random in the run follows from it, but for the worlds, which have seeds of their own."""
    data: DataSettings
    """What is searched and asked."""
    protocol: str = "search-r1"
    """The agent's protocol."""
    wording: str = "laptop"
    """The agent's wording."""
    limits: Limits = Limits()
    """Budgets of every episode."""
    policy: PolicySettings = PolicySettings()
    """The model."""
    warm_start: WarmStartSettings | None = WarmStartSettings()
    """Supervised training before the rewards; none to start reinforcement learning at once."""
    reward: RewardSpec = Field(default={"exact_match": 1.0})
    """What the agent is paid for."""
    rl: RlSettings = RlSettings()
    """Reinforcement learning."""
    concurrency: int = Field(default=256, ge=1)
    """Questions under way at once."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Of weights and cache while sampling."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; as many as there are cores when not set. Results are the same only for the same number."""
    table: TableSettings = TableSettings()
    """The last measurement."""


def recipe_path(name: str) -> Path:
    """The file of a recipe: one of ours by name (`quickstart`), or a path."""
    return yaml_file("recipe", RECIPES, name)
