"""Token values: what the page shows at each token of a training's rollout, segment by segment.

Numbers are whole: advantages and entropies in thousandths, gaps (trainer's less sampler's log-probability) in hundred
thousandths. `None` where a value is not known.
"""

from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.data.token_data import TokenData, Values
from coseek.data.trajectory import Author, Trajectory
from coseek.rewards.reward import Reward

ADVANTAGES, GAPS, ENTROPIES = "advantages", "gaps", "entropies"


def segment_values(trajectory: Trajectory, data: TokenData | None) -> list[JsonObject]:
    """For each segment, fields to add to it: values of the agent's tokens, ids of the environment's. Empty ones without
    token data. Raises `DataError` for data of other tokens."""
    if data is None:
        return [{} for _ in trajectory.segments]
    data.check(trajectory)
    found: list[JsonObject] = []
    start = 0
    for segment in trajectory.segments:
        if segment.author is not Author.AGENT:
            found.append({"read": list(segment.ids)})
            continue
        end = start + len(segment.ids)
        fields: dict[str, list[Json]] = {
            ADVANTAGES: _whole(data.advantages[start:end], 1000),
            GAPS: [
                None if value is None else round((value - sampled) * 1e5)
                for value, sampled in zip(data.trainer_logprobs[start:end], segment.logprobs, strict=False)
            ],
            ENTROPIES: _whole(data.entropies[start:end], 1000),
        }
        found.append({name: cast(Json, values) for name, values in fields.items() if values})
        start = end
    return found


def training_json(data: TokenData) -> JsonObject:
    """What the page says of a rollout in its step."""
    return {"group": data.group, "trained": data.trained, "updates": data.updates}


def reward_of_training(data: TokenData) -> Reward | None:
    """The reward that the step was computed with; `None` for one that is not finite."""
    parts = {name: value for name, value in data.parts.items() if value is not None}
    return None if data.reward is None else Reward(data.reward, parts)


def _whole(values: Values, per_one: int) -> list[Json]:
    return [None if value is None else round(value * per_one) for value in values]
