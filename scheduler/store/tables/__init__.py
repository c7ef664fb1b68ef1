"""The pointers of Iceberg tables: what is current, what each publication changed, and what running tries have written."""
