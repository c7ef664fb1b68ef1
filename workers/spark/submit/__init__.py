"""Applications that are submitted to a cluster, or whose driver runs here: command line, following, taking over, ending."""
