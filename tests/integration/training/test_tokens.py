"""From the sampled ids to the trainer's batch: nothing is split anew, added, lost or counted twice on the way."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment.audit.evidence import read_trained
from experiment.environments.base import Environment, ScriptedTurn
from experiment.records.episode import Episode
from experiment.records.plan import Plan
from experiment.rollout.chat import ChatFormat, turn_text
from experiment.rollout.context import context_digest
from experiment.rollout.episode import PlayedRollout
from experiment.rollout.evidence import write_evidence
from experiment.sealing.arrays import decode_array, encode_array
from experiment.training.models import load_tokenizer
from experiment.training.player import PlayedStep, trained_rollouts
from experiment.training.trainer import RecordedGRPOTrainer, build_trainer
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.tiny_training import ECHO, EPISODES, WORLD, Scripts, scripted_player, tiny_plan

SAMPLING = {"max_turns": 4, "max_turn_tokens": 200, "max_completion_tokens": 700}


@dataclass(frozen=True)
class Row:
    """One rollout as the trainer's batch holds it, without padding."""

    played: PlayedRollout
    prompt: list[int]
    completion: list[int]
    loss_mask: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Batch:
    """The first step's batch, in the order of the rollouts."""

    trainer: RecordedGRPOTrainer
    step: PlayedStep
    rows: list[Row]
    divisor: float
    """What the loss is divided by."""


def first_batch(plan: Plan, folder: Path, scripts: Scripts, world: Environment = WORLD) -> Batch:
    """Play a step by scripts and let the trainer score it and compute its loss."""
    player, model, tokenizer = scripted_player(plan, ECHO, world, scripts)
    trainer = build_trainer(player, model=model, tokenizer=tokenizer, work_dir=str(folder), sealed_state=None)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.compute_loss(trainer.model, inputs)
    step = trainer.played
    assert step is not None
    rows: dict[int, Row] = {}
    for at, index in enumerate(inputs["rollout_index"].tolist()):
        size, before = int(inputs["completion_mask"][at].sum()), int(inputs["prompt_mask"][at].sum())
        assert not inputs["completion_mask"][at, size:].any()
        rows[index] = Row(
            played=step.rollouts[index],
            prompt=inputs["prompt_ids"][at][-before:].tolist(),
            completion=inputs["completion_ids"][at, :size].tolist(),
            loss_mask=(inputs["tool_mask"][at] * inputs["completion_mask"][at]).tolist()[:size],
            logprobs=inputs["sampling_per_token_logps"][at, :size].tolist(),
        )
    return Batch(trainer, step, [rows[index] for index in sorted(rows)], float(inputs["num_items_in_batch"]))


def spell(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Ids of a turn character by character, which is not how the tokenizer splits it; control tags stay tokens."""
    pieces = [
        piece for part in re.split("(</?tool_call>)", text) for piece in ([part] if "tool_call" in part else part)
    ]
    ids = [each for piece in pieces for each in tokenizer.encode(piece, add_special_tokens=False)]
    return (*ids, tokenizer.eos_token_id)


def test_ids_that_the_tokenizer_would_split_otherwise_reach_the_loss_as_they_were_sampled(
    baseline: Path, tmp_path: Path
) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING)
    tokenizer = load_tokenizer(plan.recipe)
    chat = ChatFormat(tokenizer, WORLD.tools)

    def scripts(episode: Episode) -> list[list[tuple[int, ...]]]:
        return [[spell(tokenizer, turn_text(turn)) for turn in WORLD.solve(episode)]]

    batch = first_batch(plan, tmp_path / "work", scripts)
    episodes = {episode.id: episode for episode in EPISODES}
    for row in batch.rows:
        turns = scripts(episodes[row.played.record.episode])[0]
        assert list(turns[0]) != list(chat.turn_ids(WORLD.solve(episodes[row.played.record.episode])[0]))
        sampled = [token for token, on in zip(row.completion, row.loss_mask, strict=True) if on]
        assert sampled == [token for turn in turns for token in turn]
        assert row.completion == list(row.played.completion_ids)
        assert row.prompt == list(row.played.prompt_ids)
        assert row.loss_mask == list(row.played.sampled_mask)
        assert row.logprobs == list(row.played.logprobs)
        assert row.played.record.score is not None and row.played.record.score.success
    # The auditor comes to the same from the evidence alone, and misses a turn that was split anew.
    evidence = tmp_path / "step.jsonl"
    write_evidence(evidence, trained_rollouts(batch.step))
    assert [each.played.problems for each in read_trained(evidence)] == [()] * 8
    first, *rest = trained_rollouts(batch.step)
    turn, *later = first.rollout.turns
    again = chat.turn_ids(ScriptedTurn(text=turn.text, calls=()))
    split = turn.model_copy(
        update={
            "sampled_ids": encode_array(np.asarray(again, dtype=np.int32)),
            "sampled_logprobs": encode_array(np.zeros(len(again), dtype=np.float32)),
        }
    )
    forged = first.model_copy(update={"rollout": first.rollout.model_copy(update={"turns": (split, *later)})})
    write_evidence(tmp_path / "forged.jsonl", [forged, *rest])
    assert [each.played.problems for each in read_trained(tmp_path / "forged.jsonl")] == [
        ("turn 1 was not conditioned on what is recorded before it",),
        *[()] * 7,
    ]


def test_context_of_the_third_turn_is_the_template_s_own_rendering(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING)
    tokenizer = load_tokenizer(plan.recipe)
    batch = first_batch(plan, tmp_path, lambda episode: [[turn_text(turn) for turn in WORLD.solve(episode)]])
    chat_tools = ChatFormat(tokenizer, WORLD.tools)._tools
    episodes = {episode.id: episode for episode in EPISODES}
    checked = 0
    for row in batch.rows:
        episode, record = episodes[row.played.record.episode], row.played.record
        dialogue: list[dict[str, Any]] = [message.model_dump() for message in episode.messages]
        for number, (turn, played) in enumerate(zip(WORLD.solve(episode), record.turns, strict=True)):
            rendered = tokenizer.apply_chat_template(
                dialogue, tools=chat_tools, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
            ids = tokenizer.encode(rendered, add_special_tokens=False)
            assert (played.context_length, played.context) == (len(ids), context_digest(ids))
            checked += number == 2
            calls = [
                {"type": "function", "function": {"name": name, "arguments": dict(given)}} for name, given in turn.calls
            ]
            dialogue.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
            dialogue += [{"role": "tool", "name": event.name, "content": event.observation} for event in played.calls]
        # The end token is the policy's; the newline that the template writes after it, and all other framing, is not.
        framing = [token for token, on in zip(row.completion, row.loss_mask, strict=True) if not on]
        newline = tokenizer.encode("\n", add_special_tokens=False)
        assert framing[:1] == newline and row.completion[-1] == tokenizer.eos_token_id
        ends = [at for at, token in enumerate(row.completion) if token == tokenizer.eos_token_id and row.loss_mask[at]]
        assert len(ends) == len(record.turns)
    assert checked > 0


def edge_scripts(episode: Episode) -> Sequence[Sequence[str]]:
    """Nothing but the end token; a turn that is too long; calls until the turns are used up; a broken world."""
    asking = f'<tool_call>\n{{"name": "nachschlagen", "arguments": {{"schluessel": "{episode.id}"}}}}\n</tool_call>'
    return [[""], ["lang " * 200], [asking] * 4, [asking.replace(episode.id, "kaputt")]]


EDGES = {("answer", 1), ("length", 1), ("turn_limit", 4), ("fault", 1)}


@pytest.mark.parametrize("has_marks", [True, False])
def test_masks_and_divisor_agree_where_rollouts_end_in_every_way(
    baseline: Path, tmp_path: Path, has_marks: bool
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(baseline, folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    assert "generation %}" in template
    if not has_marks:
        # Trainers that build the mask from such marks would train on nothing, or on everything.
        bare = re.sub(r"\{%-? (end)?generation -?%\}\n?", "", template)
        (folder / "chat_template.jinja").write_text(bare, encoding="utf-8")
    batch = first_batch(
        tiny_plan(folder, sampling=SAMPLING), tmp_path / "work", edge_scripts, LenientWorld(frozenset({"kaputt"}))
    )
    assert {(row.played.record.end, len(row.played.record.turns)) for row in batch.rows} == EDGES
    for row in batch.rows:
        record = row.played.record
        sampled = [len(decode_array(turn.sampled_ids, "int32")) for turn in record.turns]
        assert record.tokens_generated == sum(sampled)
        assert record.tokens_retained == len(row.completion)
        if record.end == "fault":
            # No verdict: named as such, and nothing of it is trained on.
            assert (record.score, sum(row.loss_mask)) == (None, 0)
            continue
        assert row.loss_mask == list(row.played.sampled_mask)
        assert sum(row.loss_mask) == sum(sampled) >= 1
        assert (0 in row.loss_mask) == (len(record.turns) > 1)
    judged = [row for row in batch.rows if row.played.record.score is not None]
    assert len(judged) == 6
    assert batch.divisor == sum(sum(row.loss_mask) for row in batch.rows)
    assert batch.divisor == sum(row.played.record.tokens_generated for row in judged)
    cut = [row for row in judged if row.played.record.end == "length"]
    assert [row.played.record.tokens_retained for row in cut] == [SAMPLING["max_turn_tokens"]] * 2
