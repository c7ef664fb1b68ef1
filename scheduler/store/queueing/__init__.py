"""Free places under every limit."""
