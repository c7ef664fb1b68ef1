"""Warm Spark sessions: sessions in JVMs that a pool process keeps between tasks."""
