"""PySpark tasks in JVMs that stay up: the JVMs of a pool child, a session of its own for each task, how far it is."""
