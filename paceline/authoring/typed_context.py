"""The type of the context, for editors and type checkers: `def execute(self, context: Context)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pendulum import DateTime

    from paceline.authoring.asset import Asset
    from paceline.authoring.asset_events import AssetEvents, OutletEvents
    from paceline.authoring.connection import Connections
    from paceline.authoring.graph import Graph, Node
    from paceline.authoring.params import Params
    from paceline.authoring.state_store import AssetStateStores, TaskStateStore
    from paceline.authoring.task_instance import DagRun, TaskInstance
    from paceline.authoring.variable import Variables


class Context(TypedDict):
    """The values that a running task gets.

    A run without a logical date has none of the keys `logical_date`, `ds`, `ts` and those that start with these two.
    """

    asset_state_store: AssetStateStores
    conf: Mapping[str, Any]
    conn: Connections
    dag: Graph[Any]
    dag_run: DagRun
    data_interval_end: DateTime | None
    data_interval_start: DateTime | None
    ds: str
    ds_nodash: str
    #: In callbacks.
    exception: NotRequired[BaseException | str | None]
    expanded_ti_count: int | None
    inlet_events: AssetEvents
    inlets: list[Asset]
    logical_date: DateTime
    #: In a loop, its LoopContext.
    loop: Any
    macros: Any
    map_index: int
    map_index_template: str | None
    outlet_events: OutletEvents
    outlets: list[Asset]
    params: Params
    #: Of the run; None without partitions.
    partition_date: DateTime | None
    partition_key: str | None
    prev_data_interval_end_success: DateTime | None
    prev_data_interval_start_success: DateTime | None
    prev_end_date_success: DateTime | None
    prev_start_date_success: DateTime | None
    reason: NotRequired[str | None]
    run_id: str
    start_date: datetime
    #: The session and context of Spark, in PySpark tasks.
    spark: NotRequired[Any]
    sc: NotRequired[Any]
    task: Node
    task_instance: TaskInstance
    task_instance_key_str: str
    task_state_store: TaskStateStore
    templates_dict: Mapping[str, Any] | None
    test_mode: bool
    ti: TaskInstance
    triggering_asset_events: Mapping[Asset, Sequence[Any]]
    ts: str
    ts_nodash: str
    ts_nodash_with_tz: str
    var: Variables
