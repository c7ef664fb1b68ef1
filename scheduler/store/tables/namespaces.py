"""Namespaces of tables and their properties. A namespace exists if it has a property or a table, as in Iceberg's JDBC catalog."""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from scheduler.store.tables.pointers import Pinned

#: The property that a namespace always has.
EXISTS = "exists"
#: The properties with the tasks and accounts that may use a namespace, see scheduler/catalog/access.
READERS, WRITERS = "paceline.readers", "paceline.writers"
#: Serializes the creation and the deletion of namespaces; any number that nothing else uses for an advisory lock.
LOCK = 7_223_465


def names(connection: Connection, catalog: str) -> list[str]:
    """All namespaces, by name."""
    found = connection.exec_driver_sql(
        """
        select namespace from iceberg_namespace_properties where catalog_name = %s
         union select table_namespace from iceberg_tables where catalog_name = %s order by 1
        """,
        (catalog, catalog),
    )
    return list(found.scalars())


def visible(connection: Connection, catalog: str, attempt: Pinned | None) -> list[str]:
    """The namespaces that a person or a running try sees, by name. A try sees what its reproduction has, and that of no other."""
    own = None if attempt is None else attempt.scratch
    every = names(connection, catalog)
    if attempt is None:
        return every
    found = connection.exec_driver_sql("select scratch from reproduction where catalog = %s", (catalog,))
    hidden = tuple(f"{scratch}." for scratch in found.scalars())
    plain = {name for name in every if not f"{name}.".startswith(hidden)}
    return sorted(plain | {name.removeprefix(f"{own}.") for name in every if own is not None and name.startswith(f"{own}.")})


def properties(connection: Connection, catalog: str, namespace: str) -> dict[str, str] | None:
    """The properties of a namespace; None if there is no such namespace."""
    found = connection.exec_driver_sql(
        "select property_key, property_value from iceberg_namespace_properties where catalog_name = %s and namespace = %s",
        (catalog, namespace),
    ).all()
    if found or _has_tables(connection, catalog, namespace):
        return {key: value for key, value in found if key != EXISTS}
    return None


def inherited(connection: Connection, catalog: str, namespace: str) -> dict[str, str]:
    """The properties of a namespace and of those above it; the nearest one counts."""
    parts = namespace.split(".")
    above = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    found = connection.exec_driver_sql(
        """
        select property_key, property_value from iceberg_namespace_properties
         where catalog_name = %s and namespace = any(%s) order by length(namespace)
        """,
        (catalog, above),
    )
    return dict(tuple(row) for row in found)


def create(connection: Connection, catalog: str, namespace: str, values: Mapping[str, str]) -> bool:
    """Create a namespace; False if it exists."""
    _lock(connection)
    if properties(connection, catalog, namespace) is not None:
        return False
    update(connection, catalog, namespace, {**values, EXISTS: "true"}, ())
    return True


def update(connection: Connection, catalog: str, namespace: str, values: Mapping[str, str], removed: Iterable[str]) -> None:
    """Set and remove properties."""
    connection.exec_driver_sql(
        "delete from iceberg_namespace_properties where catalog_name = %s and namespace = %s and property_key = any(%s)",
        (catalog, namespace, [key for key in removed if key != EXISTS]),
    )
    for key, value in sorted(values.items()):
        connection.exec_driver_sql(
            """
            insert into iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) values (%s, %s, %s, %s)
            on conflict (catalog_name, namespace, property_key) do update set property_value = excluded.property_value
            """,
            (catalog, namespace, key, value),
        )


def drop(connection: Connection, catalog: str, namespace: str) -> bool:
    """Delete a namespace; False if it has tables, other namespaces, or tables that a try has written."""
    _lock(connection)
    used = connection.exec_driver_sql(
        """
        select exists (select from iceberg_tables where catalog_name = %s and table_namespace = %s)
            or exists (select from table_pending where namespace = %s and location is not null)
            or exists (select from iceberg_namespace_properties where catalog_name = %s and starts_with(namespace, %s))
        """,
        (catalog, namespace, namespace, catalog, f"{namespace}."),
    ).scalar_one()
    if used:
        return False
    connection.exec_driver_sql(
        "delete from iceberg_namespace_properties where catalog_name = %s and namespace = %s", (catalog, namespace)
    )
    return True


def _has_tables(connection: Connection, catalog: str, namespace: str) -> bool:
    has: bool = connection.exec_driver_sql(
        "select exists (select from iceberg_tables where catalog_name = %s and table_namespace = %s)", (catalog, namespace)
    ).scalar_one()
    return has


def _lock(connection: Connection) -> None:
    connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (LOCK,))
