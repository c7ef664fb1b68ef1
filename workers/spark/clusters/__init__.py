"""One module for each cluster manager: how to submit, ask, and kill."""
