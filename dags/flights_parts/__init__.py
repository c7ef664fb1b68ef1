"""The parts of the flights pipeline that need no DAG: checks, Spark steps, tables, picture and report."""
