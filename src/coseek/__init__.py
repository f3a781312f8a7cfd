"""coseek: train search agents and the retrievers that serve them, together or apart, and measure both.

The names below are the public library; docs/reference/library.md describes them, with an example. Each is imported at
its first use, so `import coseek` is fast and imports neither torch nor numpy.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.3.0"

if TYPE_CHECKING:
    from coseek.agents.drivers import Agent as Agent
    from coseek.agents.limits import Limits as Limits
    from coseek.core.errors import CoseekError as CoseekError, UserError as UserError
    from coseek.core.settings import Settings as Settings
    from coseek.data.answers import cover_match as cover_match, exact_match as exact_match, f1 as f1
    from coseek.data.dataset import Dataset as Dataset
    from coseek.data.passage import Corpus as Corpus, Hit as Hit, Passage as Passage
    from coseek.data.question import Question as Question
    from coseek.data.run import Run as Run
    from coseek.data.trajectory import (
        Author as Author,
        Search as Search,
        Segment as Segment,
        StopReason as StopReason,
        Trajectory as Trajectory,
    )
    from coseek.library import (
        ask as ask,
        import_documents as import_documents,
        label as label,
        load_protocol as load_protocol,
        load_questions as load_questions,
        make_reward as make_reward,
        make_world as make_world,
        measure_retrievers as measure_retrievers,
        open_agent as open_agent,
        rollout as rollout,
        run_agent as run_agent,
        score as score,
        train_agent as train_agent,
        train_retriever as train_retriever,
    )
    from coseek.measure.intervals import Interval as Interval
    from coseek.measure.score import Scores as Scores
    from coseek.models.model import Model as Model
    from coseek.pipelines.part_trials import PartTrial as PartTrial, check_part as check_part
    from coseek.pipelines.trainers import AgentTrainer as AgentTrainer, RetrieverTrainer as RetrieverTrainer
    from coseek.retrieval.factory import OpenContext as OpenContext, open_retriever as open_retriever
    from coseek.retrieval.index import build_index as build_index, open_index as open_index
    from coseek.retrieval.query import Query as Query, as_queries as as_queries
    from coseek.retrieval.retriever import Retriever as Retriever
    from coseek.rewards.reward import PartSettings as PartSettings, Reward as Reward, RewardFault as RewardFault

_NAMES = {
    "agents.drivers": "Agent",
    "agents.limits": "Limits",
    "core.errors": "CoseekError UserError",
    "core.settings": "Settings",
    "data.answers": "cover_match exact_match f1",
    "data.dataset": "Dataset",
    "data.passage": "Corpus Hit Passage",
    "data.question": "Question",
    "data.run": "Run",
    "data.trajectory": "Author Search Segment StopReason Trajectory",
    "library": "ask import_documents label load_protocol load_questions make_reward make_world measure_retrievers "
    "open_agent rollout run_agent score train_agent train_retriever",
    "measure.intervals": "Interval",
    "measure.score": "Scores",
    "models.model": "Model",
    "pipelines.part_trials": "PartTrial check_part",
    "pipelines.trainers": "AgentTrainer RetrieverTrainer",
    "retrieval.factory": "OpenContext open_retriever",
    "retrieval.index": "build_index open_index",
    "retrieval.query": "Query as_queries",
    "retrieval.retriever": "Retriever",
    "rewards.reward": "PartSettings Reward RewardFault",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Public name → module that defines it. A test compares this table with the imports above."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        from coseek.core.errors import nearest

        hint = nearest(name, _HOMES)
        raise AttributeError(f"module 'coseek' has no attribute {name!r}{hint} It offers {', '.join(sorted(_HOMES))}")
    value: object = getattr(importlib.import_module(f"coseek.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
