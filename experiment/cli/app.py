"""The commands. Hyperparameters are never flags: they live in the recipe."""

from __future__ import annotations

import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from experiment.errors import ExperimentError, UsageError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=(
        "Preregistered experiments on tool-using agents. The path: `baseline` makes a starting policy, `prepare` "
        "freezes a recipe into a sealed plan, `run` executes it, `audit` decides everything again from the files, "
        "`report` shows people what happened."
    ),
)

RecipeArgument = Annotated[Path, typer.Argument(help="A recipe (TOML).", show_default=True)]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a run.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one recipe key; may be repeated.")
]
GymOption = Annotated[
    Path | None, typer.Option(help="Python of NeMo Gym's environment; default: what `make gym-env` makes.")
]
QUICKSTART = Path("recipes/quickstart.toml")
_FAULT_REMEDY = "Keep this message: it is a fault of the program, and no verdict on a run (OPERATIONS.md, exit code 1)."


def main() -> int:
    """Run the command line; the exit code is that of the error tree in `experiment.errors`."""
    try:
        app()
    except ExperimentError as error:
        console = Console(stderr=True)
        console.print(f"[bold red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
        console.print(f"Remedy: {escape(error.remedy)}", highlight=False, soft_wrap=True)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception:  # noqa: BLE001 - whatever it is, whoever sees it is told what to do
        traceback.print_exc()
        Console(stderr=True).print(f"Remedy: {_FAULT_REMEDY}", highlight=False, soft_wrap=True)
        return ExperimentError.exit_code
    return 0


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the new recipe; becomes recipes/NAME.toml.")],
    source: Annotated[Path, typer.Option("--from", help="Recipe to start from.")] = QUICKSTART,
) -> None:
    """Write a commented recipe to start from."""
    from experiment.pipeline.recipes import copy_recipe

    typer.echo(copy_recipe(source, name))


@app.command()
def baseline(recipe: RecipeArgument = QUICKSTART, settings: SetOption = None, gym_python: GymOption = None) -> None:
    """Build the recipe's starting policy and say whether it leaves training something to do."""
    from experiment.cli.console import ConsoleWatcher
    from experiment.cli.tables import baseline_table
    from experiment.pipeline.baseline import build_baseline
    from experiment.pipeline.recipes import load_recipe

    console = Console()
    loaded = load_recipe(recipe, settings or ())
    with ConsoleWatcher(console).shown() as watcher:
        provenance, is_new = build_baseline(loaded, watcher, gym_python=gym_python)
    console.print(baseline_table(provenance))
    typer.echo(f"baseline: {loaded.inputs.baseline} ({'made now' if is_new else 'already there'})")


@app.command()
def prepare(  # noqa: PLR0913, PLR0917 - the inputs by path are part of the protocol
    recipe: RecipeArgument = QUICKSTART,
    output: Annotated[Path | None, typer.Option(help="Fresh folder for the plan; default: a new one.")] = None,
    settings: SetOption = None,
    baseline: Annotated[Path | None, typer.Option(help="Folder of the starting policy.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer.")] = None,
    math_dev: Annotated[Path | None, typer.Option(help="Maths for selection, MGSM-format JSONL.")] = None,
    mgsm: Annotated[Path | None, typer.Option(help="Maths for the final retention gate, MGSM-format JSONL.")] = None,
    gym_python: GymOption = None,
) -> None:
    """Freeze inputs, episodes, seeds, settings and rules into a sealed plan. Samples nothing."""
    from experiment.cli.tables import power_lines
    from experiment.pipeline.prepare import PLAN_FILE, fresh_plan_dir
    from experiment.pipeline.prepare import prepare as freeze
    from experiment.pipeline.recipes import load_recipe

    paths = {
        "inputs.baseline": baseline,
        "inputs.tokenizer": tokenizer,
        "retention.dev": math_dev,
        "retention.final": mgsm,
    }
    overrides = [*(settings or ()), *(f"{key}={path}" for key, path in paths.items() if path is not None)]
    loaded = load_recipe(recipe, overrides)
    folder = output or fresh_plan_dir(loaded.name)
    plan = freeze(loaded, recipe, folder, gym_python)
    Console().print(power_lines(plan.power))
    typer.echo(f"plan: {folder / PLAN_FILE}")


@app.command()
def run(
    plan: Annotated[Path | None, typer.Option(help="plan.json; default: the one that is not finished.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: the one it was begun in, else runs/ and the name.")
    ] = None,
    qualification_only: Annotated[
        bool, typer.Option("--qualification-only", help="Stop after the proof that stop and resume change nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    gym_python: GymOption = None,
) -> None:
    """Qualify, train, select, assess; every fact goes to the run's journal."""
    from experiment.cli.console import ConsoleWatcher
    from experiment.cli.tables import comparison_table, verdict_sentences
    from experiment.pipeline.run import run as execute
    from experiment.pipeline.run import run_dir_of, unfinished_plan

    plan_path = plan or unfinished_plan(resume=resume)
    folder = run_dir or run_dir_of(plan_path)
    console = Console()
    with ConsoleWatcher(console).shown() as watcher:
        outcome = execute(
            plan_path,
            folder,
            watcher,
            qualification_only=qualification_only,
            resume=resume,
            gym_python=gym_python,
        )
    if outcome.comparisons:
        console.print(comparison_table(outcome.comparisons))
        for sentence in verdict_sentences(outcome.comparisons):
            typer.echo(sentence)
    else:
        typer.echo("qualified: stop and resume equal an uninterrupted run bit for bit")
    typer.echo(f"head: {outcome.head}")
    typer.echo(f"run: {outcome.run_dir}")


@app.command()
def status(
    run_dir: RunArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the run ends.")] = False,
) -> None:
    """Show where a run is, how fast it goes and what to worry about. Reads only."""
    from experiment.cli.status import show_status

    show_status(run_dir, watch=watch)


@app.command()
def audit(
    run_dir: RunArgument,
    plan: Annotated[Path | None, typer.Option(help="The plan.json to hold the run against.")] = None,
    known_head: Annotated[
        list[str] | None, typer.Option(help="A head line kept outside the run; may be repeated.")
    ] = None,
    level: Annotated[str, typer.Option(help="bytes, protocol or recompute.")] = "recompute",
    json_output: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Check every byte and decide everything again from the files alone. Reads only."""
    from experiment.cli.audit import show_audit

    raise typer.Exit(show_audit(run_dir, plan=plan, heads=known_head or (), level=level, as_json=json_output))


@app.command()
def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    output: Annotated[Path, typer.Option(help="Folder for the page.")],
) -> None:
    """Write one self-contained HTML page about runs, with Markdown and CSV beside it."""
    from experiment.report import write_report

    for each in run_dirs:
        if not (each / "journal").is_dir():
            message = f"{each}: no run with a journal"
            raise UsageError(message, remedy="Name the folder of a run.")
    typer.echo(f"report: {write_report(run_dirs, output)}")


@app.command()
def record_inspection(
    run_dir: RunArgument,
    form: Annotated[Path, typer.Option(help="A filled-in copy of the run's samples/form.toml.")],
    reviewer: Annotated[str, typer.Option(help="Who read the samples.")],
    kind: Annotated[str, typer.Option("--as", help="human or agent.")] = "human",
) -> None:
    """Record that somebody read the preselected samples of a finished run, and what was found."""
    from experiment.pipeline.inspection import record_inspection as record

    if kind not in {"human", "agent"}:
        message = f"--as {kind}: expected human or agent"
        raise UsageError(message)
    typer.echo(f"inspection: {record(run_dir, form, reviewer=reviewer, kind=kind)}")  # type: ignore[arg-type]


@app.command()
def solve(recipe: RecipeArgument = QUICKSTART, settings: SetOption = None, gym_python: GymOption = None) -> None:
    """Play every episode with the scripted solver, with a policy that does nothing, and with the world's bad habits."""
    from experiment.cli.console import ConsoleWatcher
    from experiment.pipeline.recipes import load_recipe
    from experiment.pipeline.solve import solve_all

    loaded = load_recipe(recipe, settings or ())
    with ConsoleWatcher(Console()).shown() as watcher, TemporaryDirectory(prefix="solve-") as log_dir:
        result = solve_all(loaded, watcher, Path(log_dir), gym_python)
    for line in result.lines:
        typer.echo(line)
    raise typer.Exit(0 if result.is_sound else 1)


@app.command()
def doctor(recipe: RecipeArgument = QUICKSTART, gym_python: GymOption = None) -> None:
    """Check what a recipe needs on this machine, each with its remedy."""
    from experiment.pipeline.doctor import examine
    from experiment.pipeline.recipes import load_recipe

    checks = examine(load_recipe(recipe), gym_python)
    for check in checks:
        typer.echo(f"{'ok  ' if check.passed else 'MISS'} {check.name}: {check.found}")
        if not check.passed:
            typer.echo(f"     remedy: {check.remedy}")
    raise typer.Exit(0 if all(check.passed for check in checks) else 1)
