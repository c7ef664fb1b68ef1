"""A run without a database, broker or workers, for `paceline dags test`."""
