"""TRL's GRPO trainer with our rollouts, ECHO's extra term, and a record of everything it used.

Only hooks that call the original are overridden. With no observation weight, and with a weight of 0, parameters,
optimizer and random state stay bit-identical to a plain `GRPOTrainer` on the same rollouts (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from experiment.algorithms.echo import observation_cross_entropy
from experiment.algorithms.grpo import TRL_SETTINGS
from experiment.records.plan import Plan
from experiment.training.checkpoint import verify_restored
from experiment.training.models import lora_config
from experiment.training.player import PlayedStep, StepPlayer
from experiment.training.state import trainer_state


def sample_step(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """TRL's `rollout_func`: play the step and hand over ids, log-probabilities and masks, never text."""
    played = trainer.play_step(prompts)
    silent = [each.record.score is None for each in played.rollouts]
    return {
        "prompt_ids": [list(each.prompt_ids) for each in played.rollouts],
        "completion_ids": [list(each.completion_ids) for each in played.rollouts],
        "logprobs": [list(each.logprobs) for each in played.rollouts],
        "env_mask": [
            [0] * len(each.sampled_mask) if no_verdict else list(each.sampled_mask)
            for each, no_verdict in zip(played.rollouts, silent, strict=True)
        ],
        "verified_reward": played.rewards,
    }


def verified(*, verified_reward: Sequence[float | None], **_: object) -> list[float | None]:
    """TRL's reward function: what the verifier said; None where it said nothing."""
    return list(verified_reward)


class RecordedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """A GRPO trainer that keeps each step's rollouts, advantages and log-probabilities for the evidence."""

    def __init__(
        self,
        *args: Any,
        player: StepPlayer,
        observation_weight: float | None,
        sealed_state: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, reward_funcs=[verified], rollout_func=sample_step, **kwargs)
        self.player = player
        self.observation_weight = observation_weight
        self.played: PlayedStep | None = None
        self.observation_ce = 0.0
        self._sealed_state = sealed_state
        self._policy_logprobs: torch.Tensor | None = None
        self.checkpoint_saved: Callable[[Path], None] | None = None

    def play_step(self, prompts: Sequence[str]) -> PlayedStep:
        """Play the rollouts of the step that comes next."""
        if self._sealed_state is not None:
            # The random streams are restored last, just before the first step, so this is the first moment at
            # which the whole restored state can be compared with the sealed one.
            verify_restored(self._sealed_state, trainer_state(self), Path(self.args.output_dir))
            self._sealed_state = None
        self.observation_ce = 0.0
        self.played = self.player.play(self.state.global_step + 1, prompts)
        return self.played

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: a checkpoint holds state, not prose."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        played = self._current_step()
        played.advantages = output["advantages"].tolist()
        device = output["completion_ids"].device
        width = output["completion_ids"].shape[1]
        rows = [mask + [0] * (width - len(mask)) for mask in played.observation_masks]
        output["observation_mask"] = torch.tensor(rows, dtype=torch.float32, device=device)
        output["learned_tokens"] = output["observation_mask"].sum()
        output["rollout_index"] = torch.arange(len(rows), device=device)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy"):  # only the policy's own forward pass asks for the entropy
            self._policy_logprobs = result[0]
        return result

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        logprobs, played = self._policy_logprobs, self._current_step()
        if logprobs is None:
            message = "the trainer computed a loss without a forward pass of the policy"
            raise RuntimeError(message)
        lengths = inputs["completion_mask"].sum(dim=1).tolist()
        values = logprobs.detach().float().cpu().numpy()
        for row, index in enumerate(inputs["rollout_index"].tolist()):
            played.trainer_logprobs[index] = values[row, : lengths[row]]
        if self.observation_weight is not None:
            ce = observation_cross_entropy(logprobs, inputs["observation_mask"], inputs["learned_tokens"])
            self.observation_ce += float(ce.detach())
            loss = loss + self.observation_weight * ce
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.checkpoint_saved is not None:
            self.checkpoint_saved(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")

    def _current_step(self) -> PlayedStep:
        if self.played is None:
            message = "the trainer scored completions that this process did not sample"
            raise RuntimeError(message)
        return self.played


def build_config(plan: Plan, work_dir: str) -> GRPOConfig:
    """TRL's settings for a plan; the horizon is always the whole training, also where a job stops earlier."""
    training, compute = plan.recipe.training, plan.recipe.compute
    batch = training.prompts_per_step * training.rollouts_per_prompt
    return GRPOConfig(
        **TRL_SETTINGS,
        output_dir=work_dir,
        max_steps=training.steps,
        per_device_train_batch_size=batch // training.gradient_accumulation,
        gradient_accumulation_steps=training.gradient_accumulation,
        steps_per_generation=training.gradient_accumulation,
        num_generations=training.rollouts_per_prompt,
        max_completion_length=plan.recipe.sampling.max_completion_tokens,
        temperature=plan.recipe.sampling.temperature,
        beta=training.kl,
        learning_rate=training.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(training.schedule, training.schedule),
        warmup_steps=training.warmup_steps,
        max_grad_norm=training.max_grad_norm,
        gradient_checkpointing=training.gradient_checkpointing,
        bf16=compute.device != "cpu" and compute.dtype == "bfloat16",
        use_cpu=compute.device == "cpu",
        shuffle_dataset=False,
        full_determinism=True,
        seed=plan.recipe.seed % 2**32,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def build_trainer(
    player: StepPlayer, *, model: Any, tokenizer: Any, work_dir: str, sealed_state: Mapping[str, str] | None
) -> RecordedGRPOTrainer:
    """A trainer whose data set is the plan's schedule: one row per prompt, in order, holding the episode's id."""
    plan = player.plan
    rows = [{"prompt": episode} for step in plan.schedule for episode in step.episodes]
    trainer = RecordedGRPOTrainer(
        model=model,
        args=build_config(plan, work_dir),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(plan.recipe.training.lora),
        player=player,
        observation_weight=player.arm.observation_weight,
        sealed_state=sealed_state,
    )
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return trainer
