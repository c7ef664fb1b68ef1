"""The DAG as data: the parser writes it, and everything else reads it."""
