"""One try of a task: its pipeline, its runtimes, its outcome, and the store that it reads and writes."""
