"""What a DAG file is written with: pure Python, no I/O; `scheduler` itself exports the public names."""
