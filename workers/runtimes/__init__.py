"""How plain tasks are run; those on Spark are in workers/spark."""
