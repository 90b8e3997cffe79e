"""`python -m experiment`."""

from __future__ import annotations

import sys

from experiment.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
