"""A sensor on a file."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from scheduler.authoring.triggers import FileTrigger, find_file
from scheduler.authoring.xcom_arg import XComArg
from scheduler.operators.sensors.base import DeferrableArguments, DeferrableSensor


class FileSensor(DeferrableSensor):
    """Waits until `filepath` (a path or glob) matches a file, or a folder with a file somewhere below it.

    A relative path starts at /. With `recursive`, ** in a glob matches folders at any depth. With `deferrable=True` a
    waiter checks, on its own machine. `fs_conn_id` is not supported; `start_from_trigger` and
    `trigger_kwargs` are accepted as in Airflow and have no effect.
    """

    template_fields: Sequence[str] = ("filepath",)

    def __init__(
        self,
        *,
        filepath: str | XComArg,
        fs_conn_id: str = "fs_default",
        recursive: bool = False,
        start_from_trigger: bool = False,
        trigger_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Unpack[DeferrableArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        self.filepath = self.text("filepath", filepath)
        if fs_conn_id != "fs_default":
            raise checks.refuse(f"fs_conn_id {fs_conn_id!r} is not supported; write the whole path in filepath.")
        self.recursive = checks.boolean("recursive", recursive)

    def poke(self, context: Mapping[str, Any]) -> bool:
        return find_file(str(self.filepath), recursive=self.recursive) is not None

    def trigger(self, context: Mapping[str, Any]) -> FileTrigger:
        return FileTrigger(str(self.filepath), recursive=self.recursive, poke_interval=self.poke_interval)
