"""The database itself: engine, transactions, errors, roles and schema."""
