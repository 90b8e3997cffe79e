"""The German lookup and calculator agent."""
