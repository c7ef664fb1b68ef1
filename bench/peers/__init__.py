"""Measures Paceline beside Apache Airflow on the same machine, servers and DAG files: `python -m bench peers`."""
