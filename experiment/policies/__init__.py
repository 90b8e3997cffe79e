"""Policies: what turns a context of token ids into a sampled turn; `base.py` is the protocol."""
