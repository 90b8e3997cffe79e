from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer

from experiment import errors
from experiment.cli.app import app
from experiment.errors import ExperimentError
from tests.unit.cli.conftest import Call

COMMANDS = {
    "audit": {"RUN_DIR", "--plan", "--known-head", "--level", "--json"},
    "baseline": {"[RECIPE]", "--set", "--gym-python"},
    "doctor": {"[RECIPE]", "--gym-python"},
    "new": {"NAME", "--from"},
    "prepare": {"[RECIPE]", "--output", "--set", "--baseline", "--tokenizer", "--math-dev", "--mgsm", "--gym-python"},
    "record-inspection": {"RUN_DIR", "--form", "--reviewer", "--as"},
    "report": {"RUN_DIRS...", "--output"},
    "run": {"--plan", "--run-dir", "--qualification-only", "--resume", "--gym-python"},
    "solve": {"[RECIPE]", "--set", "--gym-python"},
    "status": {"RUN_DIR", "--watch"},
}
"""Every command with its arguments and flags. A hyperparameter never becomes a flag: it belongs in a recipe."""

EXIT_CODES = {
    "ExperimentError": 1,
    "UsageError": 2,
    "PlanError": 3,
    "JournalError": 4,
    "QualificationError": 5,
    "BudgetExhaustedError": 6,
    "FaultError": 70,
    "ServiceError": 70,
    "AlignmentError": 70,
    "StorageError": 74,
    "LockedError": 75,
    "StoppedError": 130,
}


def _error_classes() -> dict[str, type[ExperimentError]]:
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    return {name: each for name, each in found.items() if issubclass(each, ExperimentError)}


def _shown(parameter: object) -> str:
    """A parameter as the usage line shows it, an option by its long name."""
    options = getattr(parameter, "opts", [])
    if options[0].startswith("-"):
        assert options == options[:1] and not getattr(parameter, "secondary_opts", [])
        return str(options[0])
    name = options[0].upper() + ("..." if getattr(parameter, "nargs", 1) == -1 else "")
    return name if getattr(parameter, "required", False) else f"[{name}]"


def test_the_set_of_commands_and_flags_is_frozen() -> None:
    group = typer.main.get_command(app)
    found = {name: {_shown(each) for each in command.params} for name, command in group.commands.items()}  # type: ignore[attr-defined]
    assert found == COMMANDS
    assert [each.name for each in group.params] == []


def test_exit_codes_are_frozen() -> None:
    assert {name: each.exit_code for name, each in _error_classes().items()} == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_error_is_told_with_its_remedy_and_ends_with_its_code(
    name: str, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _error_classes()[name]

    def fail(*_: object, **__: object) -> None:
        message = "[red]recipes/x.toml[/]: key 'a' [bold"
        raise error(message)

    monkeypatch.setattr("experiment.pipeline.recipes.load_recipe", fail)
    assert call("solve", "recipes/x.toml") == EXIT_CODES[name]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["[red]recipes/x.toml[/]: key 'a' [bold", f"Remedy: {error.remedy}"]


def test_a_fault_of_the_program_is_told_whole_and_with_a_remedy(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("experiment.pipeline.recipes.load_recipe", fail)
    assert call("solve", "recipes/x.toml") == 1
    err = capsys.readouterr().err.splitlines()
    assert (err[0], err[-2]) == ("Traceback (most recent call last):", "ZeroDivisionError")
    assert err[-1].startswith("Remedy: Keep this message")


def test_an_error_may_bring_a_remedy_of_its_own(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("status", "runs/none") == 2
    assert "Remedy: Name the run's own directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("run", "--learning-rate", "1"),
        ("audit",),
        ("report", "runs/one"),
        ("new",),
        ("run", "--plan"),
    ],
)
def test_a_mistyped_command_is_a_usage_error(
    words: tuple[str, ...], call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error" in err and "Traceback" not in err


def test_no_command_shows_the_path_of_an_experiment(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 2
    shown = "".join(capsys.readouterr())
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    shown = capsys.readouterr().out
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    assert typer.main.get_command(app).commands[command].help  # type: ignore[attr-defined]
    assert all(getattr(each, "help", None) for each in parameters), parameters
    assert all(flag in shown for flag in COMMANDS[command] if flag.startswith("--"))


def test_what_a_command_found_becomes_the_exit_code(
    call: Call, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no starting policy here, so `doctor` has something to find."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    shutil.copyfile(repository / "recipes/quickstart.toml", "recipes/quickstart.toml")
    assert call("doctor") == 1
    assert "MISS baseline: runs/baselines/quickstart does not exist" in capsys.readouterr().out
