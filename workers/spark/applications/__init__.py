"""Applications that are submitted to a cluster: submitting, following and ending them."""
