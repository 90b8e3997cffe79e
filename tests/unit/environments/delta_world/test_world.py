"""The Delta world: its generator, its sessions and its scripted policies, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.environments.base import Environment, NativeCall, ScriptedTurn, ToolResult
from experiment.environments.delta_world.environment import DeltaWorld
from experiment.environments.delta_world.families.every import FAMILIES, KINDS
from experiment.environments.delta_world.scene import HARD, STANDARD
from experiment.environments.delta_world.task import every_layout, parse_task, task_space
from experiment.errors import FaultError, UsageError
from experiment.records.episode import Episode
from experiment.records.rollout import Score
from experiment.sealing.canonical import encode
from tests.doubles.delta_tables import FolderWorld

TIERS = ("standard", "hard")


def make(count: int, tier: str = "standard", *, seed: int = 5) -> tuple[Episode, ...]:
    return DeltaWorld().generate(prefix="train", count=count, seed=seed, taken=frozenset(), tier=tier)


def with_folders(root: Path) -> tuple[DeltaWorld, FolderWorld]:
    folders = FolderWorld(root)
    return DeltaWorld(workspaces=folders, fixtures=folders), folders


def run(session_world: Environment, episode: Episode, turns: tuple[ScriptedTurn, ...]) -> Score:
    session = session_world.open(episode)
    for turn in turns:
        for name, arguments in turn.calls:
            session.call(name, dict(arguments))
    return session.verify(turns[-1].text if turns else "")


@pytest.mark.parametrize("tier", TIERS)
def test_episodes_are_a_function_of_the_seed(tier: str) -> None:
    first, again = make(60, tier), make(60, tier)
    assert first == again
    assert {each.content for each in first} != {each.content for each in make(60, tier, seed=6)}
    assert len({each.content for each in first}) == 60


def test_families_take_turns_and_every_kind_occurs() -> None:
    episodes = make(400)
    assert [each.family for each in episodes[:6]] == ["A", "B", "C", "D", "E", "A"]
    assert {json.loads(each.task_json)["kind"] for each in episodes} == set(KINDS)


def test_sets_share_no_content_and_tiers_share_no_name() -> None:
    train = make(300)
    taken = frozenset(each.content for each in train)
    dev = DeltaWorld().generate(prefix="dev", count=100, seed=9, taken=taken)
    assert not taken & {each.content for each in dev}
    names = [
        {name for domain in tier.domains for name in domain.tables} | set(tier.schemas) for tier in (STANDARD, HARD)
    ]
    assert not names[0] & names[1]


def test_hard_tables_are_larger_with_longer_histories_and_more_distractors() -> None:
    def extents(tier: str) -> tuple[int, int, int]:
        layouts = every_layout(tuple(FAMILIES), (tier,))
        others = [sum(table.folder.startswith("other") for table in layout.tables) for layout in layouts]
        return (
            min(len(layout.tables[0].rows) for layout in layouts if layout.kind == "rename_column"),
            min(layout.tables[0].version for layout in layouts if layout.kind == "rename_column"),
            min(others),
        )

    assert all(hard > standard for hard, standard in zip(extents("hard"), extents("standard"), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tier", TIERS)
def test_every_number_of_a_space_is_another_task(family: str, tier: str) -> None:
    space = task_space(family, tier)
    essences = set()
    for number in range(space.size):
        draft = space.draft(number, 3)
        essences.add(encode([draft.essence, draft.messages[1].content]))
    assert len(essences) == space.size


def test_prompts_name_tables_in_full_and_leave_no_placeholder() -> None:
    for tier in TIERS:
        for episode in make(200, tier):
            task = parse_task(episode.task_json)
            texts = [episode.messages[1].content, *task.solution]
            assert all("{" not in text and "}" not in text for text in texts)
            assert f"workspace.{task.tables[0].name}" in texts[0]
            others = [table.name for table in task.tables if table.folder.startswith("other")]
            assert not any(name in text for name in others for text in texts)


def test_prompt_gives_no_hint_of_the_command_that_a_schema_or_layout_task_needs() -> None:
    for episode in make(300):
        text = episode.messages[1].content.lower()
        if episode.family in {"C", "D"}:
            assert not any(word in text for word in ("tblproperties", "mapping", "widening", " full", "optimize {"))


def test_task_that_the_generator_no_longer_makes_is_refused() -> None:
    episode = make(1)[0]
    task = json.loads(episode.task_json)
    for change in ({"goal": "0" * 64}, {"fixture": "0" * 64}, {"kind": "unknown"}, {"tier": "easy"}):
        changed = episode.model_copy(update={"task_json": encode({**task, **change}).decode()})
        with pytest.raises(UsageError, match=episode.id):
            DeltaWorld().solve(changed)
    with pytest.raises(UsageError, match="not readable"):
        DeltaWorld().solve(episode.model_copy(update={"task_json": "{}"}))
    with pytest.raises(UsageError, match="belongs to world"):
        DeltaWorld().solve(episode.model_copy(update={"world": "german_tools"}))


def test_solver_hands_in_once_at_the_end() -> None:
    world = DeltaWorld()
    for episode in make(100):
        *work, handing_in, last = world.solve(episode)
        assert all(call[0] == "run_sql" for turn in work for call in turn.calls)
        assert [call[0] for call in handing_in.calls] == ["submit"]
        assert last == ScriptedTurn(text="Done.", calls=())


def test_nothing_and_a_claim_solve_nothing_in_any_kind(tmp_path: Path) -> None:
    world, folders = with_folders(tmp_path)
    seen = set()
    for episode in make(200):
        kind = json.loads(episode.task_json)["kind"]
        if kind in seen:
            continue
        seen.add(kind)
        assert run(world, episode, ()) == Score(success=False, format=0.0, malformed_answer=True)
        claim = run(world, episode, world.claim_success(episode))
        assert claim == Score(success=False, format=1.0, malformed_answer=False)
    assert seen == set(KINDS)
    assert len({workspace.key for workspace in folders.opened}) == len(folders.opened)


def test_session_passes_calls_on_and_logs_what_was_shown(tmp_path: Path) -> None:
    world, folders = with_folders(tmp_path)
    session = world.open(make(1)[0])
    assert session.call("run_sql", {"statement": "a wrong one"}) == ToolResult("no such statement", is_error=True)
    assert session.call("run_python", {"code": "1"}) == ToolResult("printed", is_error=False)
    assert folders.opened[0].statements == ["a wrong one", "python: 1"]
    assert session.native_calls() == (
        NativeCall("run_sql", (("statement", "a wrong one"),), ToolResult("no such statement", is_error=True)),
        NativeCall("run_python", (("code", "1"),), ToolResult("printed", is_error=False)),
    )


def test_nothing_is_executed_after_handing_in(tmp_path: Path) -> None:
    world, folders = with_folders(tmp_path)
    session = world.open(make(1)[0])
    assert not session.call("submit", {"summary": "done"}).is_error
    for name, arguments in (("run_sql", {"statement": "SELECT 1"}), ("submit", {"summary": "again"})):
        assert session.call(name, arguments).is_error
    assert folders.opened[0].statements == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("run_sql", {}), ("run_sql", {"code": "x"}), ("drop", {}), ("submit", {"summary": "x", "more": "y"})],
)
def test_undeclared_call_is_a_fault_of_the_caller(tmp_path: Path, name: str, arguments: dict[str, str]) -> None:
    world, _ = with_folders(tmp_path)
    session = world.open(make(1)[0])
    with pytest.raises(FaultError, match="not declared"):
        session.call(name, arguments)


def test_close_gives_the_tables_back(tmp_path: Path) -> None:
    world, folders = with_folders(tmp_path)
    world.open(make(1)[0]).close()
    assert folders.opened[0].closed == 1
    assert not folders.opened[0].folder.exists()


def test_without_a_server_everything_but_playing_works() -> None:
    episode = make(1)[0]
    world = DeltaWorld()
    assert world.solve(episode)
    with pytest.raises(UsageError, match="without a Spark server") as caught:
        world.open(episode)
    assert "delta" in caught.value.remedy


@pytest.mark.parametrize("families", [("A", "A"), ("F",), ("A", "Z")])
def test_unknown_and_repeated_families_are_refused(families: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="families"):
        DeltaWorld(families)


def test_unknown_tier_is_refused() -> None:
    with pytest.raises(UsageError, match="tier"):
        DeltaWorld().generate(prefix="x", count=1, seed=1, taken=frozenset(), tier="easy")


def test_families_keep_their_order() -> None:
    assert DeltaWorld(("D", "A")).families == ("A", "D")


def test_used_up_family_is_a_usage_error() -> None:
    world = DeltaWorld(("A",))
    size = task_space("A", "hard").size
    episodes = world.generate(prefix="x", count=size, seed=1, taken=frozenset(), tier="hard")
    taken = frozenset(each.content for each in episodes)
    with pytest.raises(UsageError, match="used up"):
        world.generate(prefix="y", count=1, seed=2, taken=taken, tier="hard")


def test_generating_and_scripting_load_neither_pyarrow_nor_pyspark() -> None:
    code = (
        "import sys; from experiment.environments.delta_world.environment import DeltaWorld; w = DeltaWorld(); "
        "e = w.generate(prefix='x', count=5, seed=1, taken=frozenset()); w.solve(e[0]); "
        "print(sorted({'pyarrow', 'pyspark', 'torch'} & sys.modules.keys()))"
    )
    root = str(Path(__file__).resolve().parents[4])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
