"""TRL's side of a comparison: its GRPOTrainer, with a batch of ours instead of one that it sampled.

Its completions are padded on the right; tokens of the environment are masked by its `tool_mask`.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from coseek.models.tokenizer import HfTokenizer
from coseek.training.rl.experience import Experience


def trl_loss(
    model: PreTrainedModel,
    tokenizer: HfTokenizer,
    folder: Path,
    inputs: dict[str, Tensor],
    *,
    loss_type: str,
    clip_ratio_high: float,
    level: Literal["token", "sequence"],
) -> Tensor:
    """TRL's loss of two groups of three runs, on the CPU; it changes the model's `forward`.

    It reads its reference from the folder that the model was loaded from.
    """
    with warnings.catch_warnings():
        # Its own code uses names that transformers has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        config = GRPOConfig(
            output_dir=str(folder), report_to="none", use_cpu=True, bf16=False, loss_type=loss_type,
            importance_sampling_level=level, beta=0.1, epsilon_high=clip_ratio_high, per_device_train_batch_size=6,
            num_generations=3, max_completion_length=20, steps_per_generation=1,
            # On by default: the KL term times the ratio, which is another gradient than that of the estimate.
            use_bias_correction_kl=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=_no_reward, args=config, processing_class=tokenizer.fast,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * 8),
        )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    loss: Tensor = trainer.compute_loss(model, inputs)
    return loss


def inputs_of(experience: Experience, prompt: int) -> dict[str, Tensor]:
    """The inputs of TRL's `compute_loss` for a step, of whose rows the first `prompt` tokens are the prompt."""
    batch, mask_BT = experience.batch, experience.mask_BT
    assert experience.reference_BT is not None
    columns = {
        "completion_ids": batch.ids_BT,
        "completion_mask": batch.real_BT.long(),
        "tool_mask": mask_BT.long(),
        "old_per_token_logps": experience.old_BT,
        "ref_per_token_logps": experience.reference_BT,
    }
    rows = zip(experience.advantages_BT, mask_BT, strict=True)
    return {
        **{name: whole_BT[:, prompt:] for name, whole_BT in columns.items()},
        "prompt_ids": batch.ids_BT[:, :prompt],
        "prompt_mask": torch.ones(len(batch), prompt, dtype=torch.long),
        "advantages": torch.stack([advantages_T[mask_T][0] for advantages_T, mask_T in rows]),
        "num_items_in_batch": mask_BT.sum(),
    }


def _no_reward(completions: Sequence[str], **_: object) -> list[float | None]:
    return [0.0] * len(completions)
