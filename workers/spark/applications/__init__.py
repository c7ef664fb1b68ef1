"""Applications that spark-submit sends to a cluster, and how they are followed."""
