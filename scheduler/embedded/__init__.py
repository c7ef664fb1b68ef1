"""PostgreSQL, Redis and the processes of a stack on one machine."""
