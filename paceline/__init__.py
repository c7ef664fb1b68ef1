"""The names that DAG files import. Each module is loaded at first use; none loads database, broker or Spark code."""

import lazy_loader

# Type checkers read the same names from __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
