"""Every exception of the package, in one tree, by who has to act.

Each class carries the exit code of the process and a remedy in one sentence, which the command line
prints below the message. To add one: derive from the class whose exit code fits, say in the message
what was found where (file, key, step), and say in the remedy what to type.
"""

from __future__ import annotations


class ExperimentError(Exception):
    """Something the user can act on; `str(error)` names the place, `remedy` the next step."""

    exit_code = 1
    remedy = "Run `python -m experiment doctor` and read the message above."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy


class UsageError(ExperimentError):
    """A command, recipe or input file that cannot be used as given; nothing was written."""

    exit_code = 2
    remedy = "Correct the named key or file and run the same command again."


class PlanError(ExperimentError):
    """The plan, or something the plan froze, is not what it was when it was prepared."""

    exit_code = 3
    remedy = "Restore the named file, or prepare a fresh plan that names this one in `supersedes`."


class JournalError(ExperimentError):
    """The journal or a sealed artifact is damaged; nothing is repaired by guessing."""

    exit_code = 4
    remedy = "Keep the run directory as it is and run `python -m experiment audit` on it."


class QualificationError(ExperimentError):
    """Two executions that had to be equal bit for bit were not; the evidence is kept."""

    exit_code = 5
    remedy = "Read the first divergence named above; do not train on this machine until it is explained."


class BudgetExhaustedError(ExperimentError):
    """The wall budget that the plan froze is spent."""

    exit_code = 6
    remedy = "The run stays as it is; a larger budget needs a fresh plan."


class FaultError(ExperimentError):
    """A worker, world or service broke; no score was written for what it was doing."""

    exit_code = 70
    remedy = "Look at the log named above, then run the same command again, a run with `--resume`."


class ServiceError(FaultError):
    """The service behind a world broke; nothing that was played in it counts."""


class AlignmentError(FaultError):
    """A rollout's tool stream, sampled ids, contexts or masks disagree, so it may not train."""

    remedy = "Do not resume before the disagreement named above is understood."


class StorageError(ExperimentError):
    """The file system refused a write; what was acknowledged before is safe."""

    exit_code = 74
    remedy = "Free disk space or repair the file system, then run the same command again, a run with `--resume`."


class LockedError(ExperimentError):
    """Another process works on this run."""

    exit_code = 75
    remedy = "Wait for the named process, or stop it, then run the same command again."


class StoppedError(ExperimentError):
    """The run was asked to stop and did so after sealing what it had."""

    exit_code = 130
    remedy = "Run the same command again, a run with `--resume`."
