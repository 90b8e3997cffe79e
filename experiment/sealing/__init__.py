"""From bytes to trust: canonical JSON, digests, atomic files, sealed trees, derived seeds."""
