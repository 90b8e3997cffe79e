"""A transformers model as a policy: batched generation whose result does not depend on the batch.

Sampling is the Gumbel-max form of temperature sampling: each turn has its own noise stream, derived from its
seed, and the sampled token is the argmax of logits / temperature + noise. So a turn is the same alone, among
others, and in any order, which `torch.multinomial` cannot offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from experiment.policies.base import SampledTurn, TurnRequest

_NOISE_ELEMENTS = 1 << 13


class HFPolicy:
    """Samples turns from a causal language model."""

    def __init__(self, model: Any, *, end_id: int, pad_id: int, temperature: float) -> None:
        self._model = model
        self._end_id = end_id
        self._pad_id = pad_id
        self._temperature = temperature

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        """Sample every request in one padded batch; the model's mode and settings are restored afterwards."""
        was_training, settings = self._model.training, self._model.generation_config
        self._model.eval()
        # `generate` takes whatever is unset from the model's own file, a repetition penalty for example.
        self._model.generation_config = GenerationConfig()
        try:
            with torch.no_grad():
                return self._generate(requests)
        finally:
            self._model.generation_config = settings
            self._model.train(was_training)

    def _generate(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        device = self._model.device
        width = max(len(request.context_ids) for request in requests)
        ids = torch.full((len(requests), width), self._pad_id, dtype=torch.long)
        attention = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, width - len(request.context_ids) :] = torch.tensor(request.context_ids)
            attention[row, width - len(request.context_ids) :] = 1
        noise = _KeyedNoise([request.seed for request in requests], self._temperature, width)
        output = self._model.generate(
            input_ids=ids.to(device),
            attention_mask=attention.to(device),
            logits_processor=LogitsProcessorList([noise]),
            generation_config=GenerationConfig(
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=False,
                eos_token_id=self._end_id,
                pad_token_id=self._pad_id,
                bos_token_id=None,
                return_dict_in_generate=True,
            ),
        )
        sequences = output.sequences[:, width:].cpu()
        scores = torch.stack(noise.logprobs, dim=1).cpu()
        return [self._cut(sequences[row], scores[row], request.max_tokens) for row, request in enumerate(requests)]

    def _cut(self, ids_T: torch.Tensor, logprobs_TV: torch.Tensor, max_tokens: int) -> SampledTurn:
        """Keep a row up to its end token or its own limit."""
        ids_T = ids_T[:max_tokens]
        ends = (ids_T == self._end_id).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(ids_T)
        chosen = ids_T[:length]
        logprobs = logprobs_TV[:length].gather(1, chosen.unsqueeze(1)).squeeze(1)
        return SampledTurn(
            ids=tuple(chosen.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish="stop" if len(ends) else "length",
        )


class _KeyedNoise(LogitsProcessor):  # type: ignore[misc]
    """Adds each row's own Gumbel noise and keeps the log-probabilities it was added to."""

    def __init__(self, seeds: Sequence[int], temperature: float, prompt_width: int) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._temperature = temperature
        self._prompt_width = prompt_width
        self._block: torch.Tensor | None = None
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        vocabulary = scores.shape[1]
        rows = max(1, _NOISE_ELEMENTS // vocabulary)
        position = input_ids.shape[1] - self._prompt_width
        if position % rows == 0:
            self._block = torch.stack([_gumbel(generator, rows, vocabulary) for generator in self._generators])
        if self._block is None:
            message = "noise was asked for out of order"
            raise RuntimeError(message)
        logprobs = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        self.logprobs.append(logprobs)
        return logprobs.double() + self._block[:, position % rows].to(scores.device)


def _gumbel(generator: torch.Generator, rows: int, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise of shape (rows, vocabulary) in float64, so that rare tokens stay reachable."""
    uniform = torch.rand(rows, vocabulary, generator=generator, dtype=torch.float64)
    smallest = torch.finfo(torch.float64).tiny
    return -torch.log(-torch.log(uniform.clamp_min(smallest)))
