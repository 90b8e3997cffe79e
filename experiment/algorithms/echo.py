"""ECHO: GRPO plus a weighted cross-entropy on the tool output inside the agent's own rollouts.

The log-probabilities come from the forward pass that GRPO makes anyway. Departures from the published method:

1. Only tool output is learned, never the template's framing around it.
2. The cross-entropy has its own normaliser, the number of learned observation tokens in the whole generation
   batch, so its size does not depend on how much the policy wrote.
3. It is taken of the policy itself, so rollouts must be sampled at temperature 1; or, where the recipe says
   `observation_logits = "tempered"`, of the policy at the sampling temperature, which is the distribution that the
   trainer's forward pass gives and costs no second one.
4. Answers to calls that never reached the world can be left out (`drop_failed_observations`), and answers that the
   agent never saw always are.
"""

from __future__ import annotations

import torch


def observation_cross_entropy(
    logprobs_BT: torch.Tensor, mask_BT: torch.Tensor, learned_tokens: torch.Tensor
) -> torch.Tensor:
    """Return this micro-batch's share of the mean negative log-probability of the learned observation tokens.

    The shares of all micro-batches of a generation batch add up to the mean over its learned tokens.

    Args:
        logprobs_BT: Log-probabilities of the completion tokens. Shape (B, T).
        mask_BT: 1 where a token is learned. Shape (B, T).
        learned_tokens: Number of learned tokens in the whole generation batch, 0-dimensional.

    Returns:
        0-dimensional tensor; 0 where nothing is learned.

    Source:
        arXiv:2605.24517 (ECHO), environment cross-entropy term.
    """
    return -(logprobs_BT * mask_BT).sum() / learned_tokens.clamp(min=1.0)
