"""TRL's side of a comparison: its GRPOTrainer, handed a batch of ours instead of one that it sampled.

Its prompts are padded on the left and its completions on the right; what the environment wrote is its `tool_mask`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from coseek.models.tokenizer import HfTokenizer
from coseek.training.rl.experience import Experience

Inputs = dict[str, Tensor]
"""What TRL's `compute_loss` reads, by its names."""


@dataclass(frozen=True, slots=True)
class TrlSide:
    """Its trainer, with the module and the optimizer that it says may be missing."""

    trainer: GRPOTrainer
    module: PreTrainedModel
    optimizer: Optimizer

    def loss(self, inputs: Inputs) -> Tensor:
        """The loss of one micro-batch."""
        loss: Tensor = self.trainer.compute_loss(self.module, inputs)
        return loss


def open_trl(
    model: PreTrainedModel,
    tokenizer: HfTokenizer,
    folder: Path,
    *,
    loss_type: str = "dapo",
    beta: float = 0.0,
    clip_ratio_high: float = 0.2,
    rows: int = 8,
    group_size: int = 8,
    level: Literal["token", "sequence"] = "token",
    max_completion: int = 256,
) -> TrlSide:
    """A GRPOTrainer on the CPU that logs nowhere; it changes the model's `forward`, so give it a copy.

    With a `beta` it reads its reference from the folder that the model was loaded from.
    """
    with warnings.catch_warnings():
        # Its own code uses names that transformers has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        config = GRPOConfig(
            output_dir=str(folder),
            report_to="none",
            use_cpu=True,
            bf16=False,
            loss_type=loss_type,
            importance_sampling_level=level,
            beta=beta,
            epsilon_high=clip_ratio_high,
            # On by default: the KL term times the ratio, which is another gradient than that of the estimate.
            use_bias_correction_kl=False,
            per_device_train_batch_size=rows,
            num_generations=group_size,
            max_completion_length=max_completion,
            steps_per_generation=1,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=_no_reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * 8),
            processing_class=tokenizer.fast,
        )
        trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    assert trainer.optimizer is not None
    return TrlSide(trainer, model, trainer.optimizer)


def inputs_of(experience: Experience, prompts_B: Sequence[int], rows_b: Tensor) -> Inputs:
    """These rows of a step in TRL's shape; a row's first `prompts_B[row]` tokens are its prompt."""
    batch = experience.batch
    lengths = [int(batch.lengths_B[row]) for row in rows_b.tolist()]
    prompts = [prompts_B[row] for row in rows_b.tolist()]
    wide, long = max(prompts), max(all_ - prompt for all_, prompt in zip(lengths, prompts, strict=True))
    prompt_ids = torch.zeros(len(prompts), wide, dtype=torch.long)
    prompt_mask = torch.zeros_like(prompt_ids)
    parts = {"completion_ids": batch.ids_BT, "tool_mask": experience.mask_BT, "old_per_token_logps": experience.old_BT}
    if experience.reference_BT is not None:
        parts["ref_per_token_logps"] = experience.reference_BT
    inputs = {name: torch.zeros(len(prompts), long, dtype=whole.dtype) for name, whole in parts.items()}
    completion_mask = torch.zeros(len(prompts), long, dtype=torch.long)
    advantages_b = torch.zeros(len(prompts))
    for place, row in enumerate(rows_b.tolist()):
        prompt, length = prompts[place], lengths[place]
        prompt_ids[place, wide - prompt :] = batch.ids_BT[row, :prompt]
        prompt_mask[place, wide - prompt :] = 1
        completion_mask[place, : length - prompt] = 1
        for name, whole in parts.items():
            inputs[name][place, : length - prompt] = whole[row, prompt:length]
        advantages_b[place] = experience.advantages_BT[row][experience.mask_BT[row]][0]
    inputs["tool_mask"] = inputs["tool_mask"].long()
    return {
        **inputs,
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_mask": completion_mask,
        "advantages": advantages_b,
        "num_items_in_batch": experience.mask_BT.sum(),
    }


def _no_reward(completions: Sequence[str], **_: object) -> list[float | None]:
    return [0.0] * len(completions)
