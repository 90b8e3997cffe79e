"""The command line: prints, exit codes, lazy imports."""
