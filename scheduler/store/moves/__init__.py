"""The moves of task instances: the only statements that write their state, dispatch ID and number of the try, a verb a file."""
