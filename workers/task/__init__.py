"""One try of a task: its pipeline, its runtimes, and the store that it reads and writes."""
