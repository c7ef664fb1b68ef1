"""How each kind of task is run: plain Python, a shell, or PySpark."""
