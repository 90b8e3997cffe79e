"""Tables of a Delta lakehouse behind Spark Connect: the agent repairs them with SQL and Python."""
