"""Access to the database: engine, transactions, errors, roles and schema."""
