"""German word problems, single turn, no tools: the retention suite."""
