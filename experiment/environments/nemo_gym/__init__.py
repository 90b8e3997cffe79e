"""Worlds behind a NeMo Gym service: the service, who drives it, and what of it a plan freezes."""
