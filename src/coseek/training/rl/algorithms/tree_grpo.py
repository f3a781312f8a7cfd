"""Tree-GRPO: compares each trajectory with those of its own tree and with all of its question (Ji et al. 2025,
arXiv 2509.21240, eq. 6).

Trajectories of a question belong to one tree if they share their first turn. A turn that several share stands once in
each of them, and so gets the mean of their advantages: that is the paper's signal of single steps.
"""

from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings

SETTINGS = TurnSettings


def advantages(step: StepRewards, settings: TurnSettings) -> TokenAdvantages:
    """Return Â_intra-tree + Â_inter-tree of each trajectory; shape B. A tree of one trajectory adds 0."""
    from coseek.training.rl.losses import group_advantages, has_zero_std

    values_B = step.standardised()
    for node in step.tree():
        if node.parent is None and len(node.rows) > 1:
            rows = list(node.rows)
            if not has_zero_std(step.rewards_B[rows]):
                values_B[rows] += group_advantages(step.rewards_less_kl_B[rows])
    return values_B
