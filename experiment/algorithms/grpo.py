"""GRPO as it is trained here, in the terms of TRL's trainer.

The reference is Shao et al. 2024, arXiv:2402.03300. What is trained departs from it in four points:

1. Token-level normalisation over the whole generation batch (`dapo`), not a mean of sequence means.
2. One update per batch of rollouts, so the importance ratio is 1 when it is used and clipping never bites.
3. The KL estimate carries the importance ratio (TRL's bias correction), which is 1 for the same reason.
4. A rollout without a verdict takes part in neither the group's baseline nor any loss term.
"""

from __future__ import annotations

from typing import Final

TRL_SETTINGS: Final[dict[str, object]] = {
    "loss_type": "dapo",
    "scale_rewards": "group",
    "num_iterations": 1,
    "epsilon": 0.2,
    "mask_truncated_completions": False,
    "use_bias_correction_kl": True,
}
"""Settings of `trl.GRPOConfig` that define the algorithm; everything else comes from the recipe."""
