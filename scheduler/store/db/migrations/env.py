"""Alembic's entry: migrate.py hands over the open connection."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, version_table="paceline_schema")
with context.begin_transaction():
    context.run_migrations()
