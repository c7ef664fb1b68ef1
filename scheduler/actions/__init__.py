"""What people ask for, over the REST API and by command: transactions, wakeups after the commit, deletion of data, dry runs."""
