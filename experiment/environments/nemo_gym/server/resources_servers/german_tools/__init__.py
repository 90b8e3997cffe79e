"""The German lookup and calculator world as a resources server."""
