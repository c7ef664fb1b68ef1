"""Hostile ids, confs, messages, DAG files, settings and arguments by the thousand: `make fuzz`, and a short part in the tests."""
