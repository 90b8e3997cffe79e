"""What is written down: frozen, strict, versioned records (pydantic)."""
