"""The classes and functions that DAG files use: pure Python without I/O. `paceline` exports the public names."""
