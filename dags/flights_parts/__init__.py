"""The parts of the flights pipeline that do not depend on the DAG: checks, Spark steps, tables, chart and report."""
