"""`paceline migrate-airflow`: rewrites files that were written for Apache Airflow, and imports what Airflow exports.

It needs the packages of `paceline[airflow]`.
"""
