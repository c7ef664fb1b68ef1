"""The parts of the flights pipeline that need no DAG: rules, Spark steps, tables, picture and report."""
