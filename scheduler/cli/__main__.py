"""Runs the `paceline` command as `python -P -m scheduler.cli`, without the console script."""

from scheduler.cli import main

main()
