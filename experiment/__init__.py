"""Preregistered experiments on tool-using language-model agents, with sealed journals.

Read in this order: `pipeline/` is the main path (recipe -> plan -> run), `decisions/` holds every
verdict as a pure function, `journal/` is the append-only record of facts, and `audit/` decides
everything again from the files alone. The layers are listed in `docs/architecture.md` and enforced.
"""

__version__ = "0.1.0"
