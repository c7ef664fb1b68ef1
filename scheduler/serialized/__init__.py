"""The DAG as data: what the parser writes and everything else reads."""
