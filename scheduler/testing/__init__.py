"""Runs of DAGs and tasks without servers, for tests: the pytest plugin, `dag.test()` and `paceline dags test` use it."""
