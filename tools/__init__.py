"""Checks of the repository itself. `make check` runs them all with `python -m tools`; each prints what is wrong and where."""

import importlib
import pkgutil

from tools.sources import CHECKS

for _found in pkgutil.iter_modules(__path__):
    if _found.name != "__main__":
        importlib.import_module(f"tools.{_found.name}")

__all__ = ["CHECKS"]
