"""`python -m tools`: run all checks, write what is wrong, and exit with 1 if anything is."""

import sys

from tools import CHECKS

wrong = [f"{name}: {line}" for name, check in CHECKS.items() for line in check()]
sys.stdout.write("\n".join([*wrong, f"{len(wrong)} mistakes were found by {len(CHECKS)} checks of the repository.", ""]))
sys.exit(bool(wrong))
