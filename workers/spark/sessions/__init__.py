"""Warm Spark sessions: JVMs that a worker keeps between tasks."""
