"""The part `tables` of the bench: publication with the report of a task, TPC-H in SQL tasks, and small Spark tasks that write."""
