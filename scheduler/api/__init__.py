"""The REST API, with the paths and fields of Airflow's stable API."""
