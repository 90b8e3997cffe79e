"""A Databricks-like world on Spark Connect and Delta Lake."""
