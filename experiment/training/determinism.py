"""Settings under which equal inputs give equal bits."""

from __future__ import annotations

import torch
from transformers import set_seed

from experiment.records.recipe import Compute


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
