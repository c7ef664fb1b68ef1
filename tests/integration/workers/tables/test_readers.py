"""A reader that began before a table is overwritten, and its old snapshots expire within what is kept, reads to the last row."""

import os

import pytest
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Ending

#: `make test-tables` has 200 of them.
READERS = int(os.environ.get("TABLES_READERS", "8"))
#: Readers of one table: each commit rewrites the list of its snapshots.
OF_TABLE = 10


@pytest.mark.timeout(3600 if READERS > 20 else 300)
def test_a_reader_that_began_before_an_overwrite_reads_its_snapshot_to_the_last_row(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    whole = 0
    for number in range(READERS):
        name = f"sales.t{number // OF_TABLE}"
        if number % OF_TABLE == 0:
            table = person.create_table(name, SCHEMA)
            table.append(rows(0))
        first = [number * 100 + one for one in range(6)]
        with table.transaction() as change:
            change.delete("id < 1000000")
            for one in range(3):  # three files, so that the reader has two to open yet
                change.append(rows(*first[one * 2 : one * 2 + 2]))
        reader = table.refresh().scan().to_arrow_batch_reader()
        seen = reader.read_next_batch()["id"].to_pylist()
        claim = lake.claim(f"d{number}")
        catalog = lake.catalog(table_tries.give_token(scenario.hot.dicts, claim))
        catalog.load_table(name).overwrite(rows(-number))
        assert scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")).is_stored
        assert ids(person.load_table(name)) == [-number]
        seen += [row for batch in reader for row in batch["id"].to_pylist()]
        whole += sorted(seen) == first
        table.refresh()
    assert whole == READERS
    print(f"{whole} of {READERS} readers read their snapshot to the last row")
