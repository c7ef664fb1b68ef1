"""The shapes of requests and responses: the fields of Airflow's stable API, filled from rows of the store."""
