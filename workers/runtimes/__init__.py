"""How user code runs: one runtime for each kind of task."""
