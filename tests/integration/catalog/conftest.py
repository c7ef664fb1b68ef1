"""A catalog over the database of one test."""

from support.table_fixtures import lake, settings

__all__ = ["lake", "settings"]
