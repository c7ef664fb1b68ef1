"""Lists: a query has the tables that it needs, and no others."""

from scheduler.store.read.instances import INSTANCES

RUN, VERSION = "join dag_run r on", "join dag_version v on"


def test_a_query_has_only_the_tables_that_it_needs() -> None:
    alone, by_run, by_version = (
        INSTANCES.source_for(sql) for sql in ("order by t.id", "where r.run_id = 'x'", "where v.number = 1")
    )

    assert alone == "task_instance t"
    assert RUN in by_run and VERSION not in by_run
    assert by_version.index(RUN) < by_version.index(VERSION), "the version of a try is that of its run"
