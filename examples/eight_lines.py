"""Answer five questions of a generated world with an agent that needs no model: `python examples/eight_lines.py`."""

import coseek

data = coseek.make_world("worlds/eight", size="tiny")
coseek.build_index(data.folder, "bm25", "worlds/eight-bm25")
trajectories = coseek.rollout("rules", data.questions("test")[:5], "worlds/eight-bm25")
rewards = coseek.score(trajectories, {"exact_match": 1.0})
for trajectory in trajectories:
    print(trajectory.question.question, "->", trajectory.answer)
print("right:", sum(reward.value for reward in rewards if isinstance(reward, coseek.Reward)), "of", len(rewards))
