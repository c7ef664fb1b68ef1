"""Lets files that were written for Apache Airflow import Paceline's classes under Airflow's names."""
