"""The entry point of Alembic, with the open connection of migrate.py."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, version_table="paceline_schema")
with context.begin_transaction():
    context.run_migrations()
