"""`python -P -m scheduler.cli` is the `paceline` command without a console script."""

from scheduler.cli import main

main()
