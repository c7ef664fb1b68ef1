"""The rules of the flights pipeline are plain SQL: checked here on a small SQLite database, without Spark."""

import sqlite3
from collections.abc import Iterator

import pytest
from flights_parts import rules, source
from flights_parts.rules import RulesBrokenError, check, not_null, refers, row_count, unique, within


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript("""
        CREATE TABLE flights (carrier TEXT, flight INT, distance INT);
        INSERT INTO flights VALUES ('UA', 1, 200), ('UA', 2, 2475), ('AA', 1, 733), ('AA', 2, NULL);
        CREATE TABLE airlines (carrier TEXT);
        INSERT INTO airlines VALUES ('UA'), ('AA');
    """)
    yield connection
    connection.close()


def query(database: sqlite3.Connection) -> rules.Query:
    return lambda statement: [dict(row) for row in database.execute(statement)]


def broken(database: sqlite3.Connection, *checked: rules.Rule) -> list[rules.Breach]:
    with pytest.raises(RulesBrokenError) as caught:
        check(checked, query(database))
    return list(caught.value.breaches)


def test_data_that_keeps_every_kind_of_rule_passes_with_one_query(database: sqlite3.Connection) -> None:
    kept = [
        row_count("flights", 4, 4),
        unique("flights", "carrier", "flight"),
        not_null("flights", "carrier", "flight"),
        within("flights", "distance", 1, 5_000),
        refers("flights", "carrier", "airlines", "carrier"),
    ]

    statements: list[str] = []

    def recorded(statement: str) -> list[rules.Row]:
        statements.append(statement)
        return query(database)(statement)

    check(kept, recorded)

    assert len(statements) == 1


def test_a_table_with_too_few_or_too_many_rows_is_refused_with_its_count(database: sqlite3.Connection) -> None:
    [short] = broken(database, row_count("flights", 5, 9))
    [long] = broken(database, row_count("flights", 1, 3))

    assert short.sample == long.sample == [{"row_count": 4}]
    assert "flights: has 5 to 9 rows" in str(short)


def test_a_doubled_key_is_refused_with_the_key_and_its_copies(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO flights VALUES ('UA', 2, 17)")

    [breach] = broken(database, unique("flights", "carrier", "flight"))

    assert breach.rows == 1
    assert breach.sample == [{"carrier": "UA", "flight": 2, "copies": 2}]


def test_a_missing_value_is_refused_with_its_row(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO flights VALUES (NULL, 7, 17)")

    [breach] = broken(database, not_null("flights", "flight", "carrier"))

    assert breach.sample == [{"carrier": None, "flight": 7, "distance": 17}]


def test_a_value_out_of_range_is_refused_but_a_missing_one_is_another_rule(database: sqlite3.Connection) -> None:
    [breach] = broken(database, within("flights", "distance", 1, 1_000))

    assert breach.sample == [{"carrier": "UA", "flight": 2, "distance": 2475}]


def test_a_reference_to_nothing_is_refused(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM airlines WHERE carrier = 'AA'")

    [breach] = broken(database, refers("flights", "carrier", "airlines", "carrier"))

    assert breach.rows == 2
    assert {row["carrier"] for row in breach.sample} == {"AA"}


def test_tolerated_rows_pass_and_one_more_does_not(database: sqlite3.Connection) -> None:
    check([not_null("flights", "distance", tolerated_rows=1)], query(database))
    database.execute("INSERT INTO flights VALUES ('AA', 3, NULL)")

    [breach] = broken(database, not_null("flights", "distance", tolerated_rows=1))

    assert breach.rows == 2
    assert "broken by 2 rows, 1 tolerated" in str(breach)


def test_all_broken_rules_are_named_at_once_with_a_few_rows_each(database: sqlite3.Connection) -> None:
    database.executemany("INSERT INTO flights VALUES ('XX', ?, -1)", [(number,) for number in range(10, 30)])
    checked = (
        within("flights", "distance", 1, 5_000),
        unique("airlines", "carrier"),
        refers("flights", "carrier", "airlines", "carrier"),
    )

    with pytest.raises(RulesBrokenError, match=r"distance is between 1 and 5000 - broken by 20 rows, such as") as caught:
        check(checked, query(database))

    assert [breach.rule for breach in caught.value.breaches] == [checked[0], checked[2]]
    assert all(len(breach.sample) == rules.SAMPLE_ROWS for breach in caught.value.breaches)


def test_every_table_has_a_key_and_a_row_count_among_the_rules() -> None:
    promises = {table: [rule.promise for rule in rules.RULES if rule.table == table] for table in source.SCHEMAS}

    assert all(any("is unique" in promise for promise in found) for found in promises.values())
    assert all(any(promise.startswith("has ") for promise in found) for found in promises.values())
