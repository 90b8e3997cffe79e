"""Settings under which equal inputs give equal bits."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import set_seed

from experiment.records.entry import WorkerEnvironment
from experiment.records.recipe import Compute

_PROCESSORS = Path("/proc/cpuinfo")


def configure(compute: Compute, seed: int) -> None:
    """Fix thread counts, deterministic kernels and all global random streams of this process.

    Unwritten memory is left unfilled: the trainer's fused head allocates large buffers that it overwrites whole,
    and filling them changes no result and costs two fifths of the time.
    """
    torch.set_num_threads(compute.threads)
    if torch.get_num_interop_threads() != 1:  # may be set once in a process only
        torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    set_seed(seed % 2**32)


def observe(compute: Compute) -> WorkerEnvironment:
    """What the arithmetic of this process depends on, after `configure`."""
    is_cuda = compute.device == "cuda"
    major, minor = torch.cuda.get_device_capability() if is_cuda else (0, 0)
    return WorkerEnvironment(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        device=torch.cuda.get_device_name() if is_cuda else _processor(),
        capability=f"{major}.{minor}" if is_cuda else torch.backends.cpu.get_cpu_capability(),
        torch=str(torch.__version__),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _processor() -> str:
    """The processor's name as the system tells it; empty where it does not."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")
