"""The classes and functions that DAG files use: pure Python, of which only object_storage does I/O.

`paceline` exports the public names.
"""
