"""Our resources servers, laid out as NeMo Gym expects them."""
