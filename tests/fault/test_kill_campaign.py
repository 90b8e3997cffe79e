"""A run of the real training stack, killed at random moments of every stage, ends where an undisturbed one does."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.journal.chain import Entry
from experiment.journal.reader import read_journal
from experiment.records.entry import Resume
from tests.doubles.fresh_clone import FreshClone
from tests.doubles.run_digests import Compared, compare_runs
from tests.fault.kill_campaign import KillCampaign
from tests.fault.kill_moments import STAGES, Means

SEED = int(os.environ.get("CAMPAIGN_SEED", "20261020"))
"""Root of all draws; another one gives other moments."""

RECIPE = Path("recipes/campaign.toml")
PLAN = Path("plans/campaign/plan.json")
RUN_DIR = Path("runs/campaign")
SETTINGS = (
    "inputs.baseline=runs/baselines/tiny",
    "episodes.train.count=6",
    "episodes.dev.count=32",
    "episodes.final.count=32",
    "retention.dev.count=8",
    "retention.final.count=8",
    "sampling.max_turns=3",
    "sampling.max_completion_tokens=150",
    "sampling.batch_size=16",
    "training.steps=18",
    "training.prompts_per_step=2",
    "training.rollouts_per_prompt=4",
    "training.gradient_accumulation=2",
    "training.learning_rate=5e-3",
    'training.schedule="linear"',
    "training.warmup_steps=3",
    "training.lora.rank=4",
    "training.lora.alpha=8",
    "training.lora.dropout=0.1",
    "checkpoints.recovery_every=7",
    "checkpoints.candidates=[5, 11, 18]",
    "checkpoints.diagnostic=18",
    "assessment.seeds=[42, 1729, 20261020, 7]",
    "assessment.retention_seeds=[42, 1729]",
    "assessment.resamples=500",
    "compute.workers=2",
)
"""Two arms of six epochs with everything that a restart could get wrong: dropout, warm-up, accumulated gradients."""

WRITE_POLICY = """
import sys
from pathlib import Path
from tests.doubles.tiny_training import write_policy
write_policy(Path(sys.argv[1]))
"""


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line at once, captured or not."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    return show


@pytest.fixture
def prepared(tmp_path: Path, repository: Path) -> FreshClone:
    """A workspace with a plan that no run has claimed."""
    clone = FreshClone.make(tmp_path / "undisturbed")
    shutil.copyfile(repository / "tests/golden/recipe.toml", clone.folder / RECIPE)
    (clone.folder / "runs/baselines").mkdir(parents=True)
    written = clone.python("-c", WRITE_POLICY, "runs/baselines/tiny", path=repository)
    assert written.code == 0, written.err
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    done = clone.experiment("prepare", str(RECIPE), "--output", str(PLAN.parent), *settings)
    assert done.code == 0, done.err
    return clone


def _summary(campaign: KillCampaign, entries: Sequence[Entry], compared: Compared) -> dict[str, str | int]:
    """What was done to the run and what came of it, for people."""
    types = Counter(entry.type for entry in entries)
    moved = sum(len(entry.body.moved) for entry in entries if isinstance(entry.body, Resume))
    by_means = {means: sum(count for (_, each), count in campaign.kills.items() if each is means) for means in Means}
    by_stage = {name: sum(count for (each, _), count in campaign.kills.items() if each == name) for name in STAGES}
    return {
        "seed": SEED,
        "kills": campaign.kills.total(),
        "kills by signal": "; ".join(f"{means.value}: {count}" for means, count in by_means.items()),
        "kills by stage": "; ".join(f"{stage}: {count}" for stage, count in by_stage.items()),
        "resumes": types["resume"],
        "steps done again": types["train.redone"],
        "moved to recovery": moved,
        "digests equal": compared.sentence,
    }


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_at_random_moments_ends_where_an_undisturbed_one_does(
    prepared: FreshClone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[str], None],
    record_property: Callable[[str, object], None],
) -> None:
    disturbed = FreshClone(tmp_path / "disturbed")
    shutil.copytree(prepared.folder, disturbed.folder)
    tell("\nthe undisturbed run")
    done = prepared.experiment("run", "--plan", str(PLAN))
    assert done.code == 0, done.err
    planned = Counter(entry.type for entry in read_journal(prepared.folder / RUN_DIR).entries)

    campaign = KillCampaign(disturbed, PLAN, RUN_DIR, planned, SEED)
    campaign.execute(tell)
    entries = read_journal(disturbed.folder / RUN_DIR).entries
    compared = compare_runs(prepared.folder / RUN_DIR, disturbed.folder / RUN_DIR)
    for name, value in _summary(campaign, entries, compared).items():
        record_property(name, value)

    assert not compared.differing, "\n".join(("these differ:", *compared.differing[:40]))
    for clone in (prepared, disturbed):
        monkeypatch.chdir(clone.folder)
        report = audit_run(RUN_DIR, level="recompute")
        assert (report.exit_code, report.findings) == (0, ())
    by_stage = Counter(stage for stage, _ in campaign.kills.elements())
    assert campaign.kills.total() >= 30
    assert min(by_stage[stage] for stage in STAGES) >= 5
    assert {"resume", "train.redone"} <= {entry.type for entry in entries}
