"""A try that is not the current one changes nothing about tables."""

import pytest
from pyiceberg.exceptions import RESTError, UnauthorizedError
from support.tables import SCHEMA, Lake

from paceline.exceptions import StaleTryError
from scheduler.store.worker import table_tries
from scheduler.store.worker.table_tries import Movable


def test_a_try_that_is_not_the_current_one_changes_no_table(lake: Lake) -> None:
    hot = lake.scenario.hot
    claim = lake.claim()
    catalog = lake.catalog(table_tries.give_token(hot.dicts, claim))
    catalog.create_table("sales.t", SCHEMA)
    lake.scenario.sql("update task_instance set dispatch_id = gen_random_uuid()")
    with pytest.raises((UnauthorizedError, RESTError)):
        catalog.create_table("sales.other", SCHEMA)
    # The current dispatch keeps the token.
    lake.scenario.sql("update table_try t set dispatch_id = i.dispatch_id from task_instance i where i.id = t.task_instance_id")
    before = lake.scenario.rows("select t::text, p::text from table_try t join table_pending p on p.try_id = t.id")
    table = Movable("sales", "t", None, before[0][1], [], None)
    for write in (
        lambda: table_tries.give_token(hot.dicts, claim),
        lambda: table_tries.continues(hot.dicts, claim),
        lambda: table_tries.take_over(hot.dicts, claim),
        lambda: table_tries.follow(hot.dicts, claim),
        lambda: table_tries.move(hot, claim, table, "elsewhere", {}),
        lambda: table_tries.give_up(hot, claim, table),
    ):
        with pytest.raises(StaleTryError):
            write()
    assert lake.scenario.rows("select t::text, p::text from table_try t join table_pending p on p.try_id = t.id") == before
