"""Code that tests share: waiting with a deadline, servers of the session, stacks of real processes."""
