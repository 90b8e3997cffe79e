"""Worlds: each plays episodes and judges them; `base.py` is the protocol."""
