"""The classes and functions that DAG files use: pure Python without I/O. `scheduler` exports the public names."""
