"""What runs under NeMo Gym's own Python: the host of its servers, and the facts a plan freezes."""
