"""Values that mapped tasks take from others: one entry of a long list without reading the list, or what all instances pushed."""

from typing import Any

from scheduler.store.worker.external_runs import Ask

#: Of a mapped task, in map order; instances that pushed nothing are left out.
ALL = """
select x.value from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s order by t.map_index
"""
COUNT_INSTANCES = """
select count(*) from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""
INSTANCE = f"{ALL} offset %s limit 1"
_LENGTH = """case json_typeof(x.value)
       when 'array' then json_array_length(x.value)
       when 'object' then (select count(*) from json_object_keys(x.value)) end"""
COUNT_ENTRIES = f"""
select {_LENGTH}
  from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""
#: An entry of a dict is the pair [key, value].
ENTRY = f"""
select case json_typeof(x.value)
       when 'array' then x.value -> %s
       when 'object' then (select json_build_array(key, value) from json_each(x.value) offset %s limit 1) end
  from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s and {_LENGTH} > %s
"""


def of_instances(ask: Ask, dag_run_id: int, task_no: int, key: str) -> list[Any]:
    """What the instances of a mapped task pushed, in map order."""
    return [row[0] for row in ask(ALL, (key, dag_run_id, task_no))]


def length(ask: Ask, dag_run_id: int, task_no: int, key: str, *, is_mapped: bool) -> int | None:
    """How many entries there are to map over; None if there is no list or dict."""
    rows = ask(COUNT_INSTANCES if is_mapped else COUNT_ENTRIES, (key, dag_run_id, task_no))
    return rows[0][0] if rows else None


def entry(ask: Ask, dag_run_id: int, task_no: int, key: str, place: int, *, is_mapped: bool) -> list[Any]:
    """The entry at `place`, alone in a list; an empty list if there is none."""
    if is_mapped:
        return [row[0] for row in ask(INSTANCE, (key, dag_run_id, task_no, place))]
    return [row[0] for row in ask(ENTRY, (place, place, key, dag_run_id, task_no, place))]
