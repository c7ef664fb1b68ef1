"""A sensor on a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from paceline.authoring.triggers import FileTrigger, find_file
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import NotFoundError
from paceline.sensors.base import DeferrableArguments, DeferrableSensor

DEFAULT_CONNECTION = "fs_default"


class FileSensor(DeferrableSensor):
    """Waits until `filepath` (a path or glob) matches a file, or a folder with a file somewhere below it.

    A relative path starts at the folder `path` in the extra of the connection `fs_conn_id`; at / if there is no connection
    fs_default. With `recursive`, ** in a glob matches folders at any depth. With `deferrable=True` a waiter checks, on its own
    machine. `start_from_trigger` and `trigger_kwargs` are accepted as in Airflow and have no effect.
    """

    template_fields: Sequence[str] = ("filepath", "fs_conn_id")

    def __init__(
        self,
        *,
        filepath: str | XComArg,
        fs_conn_id: str | XComArg = DEFAULT_CONNECTION,
        recursive: bool = False,
        start_from_trigger: bool = False,
        trigger_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Unpack[DeferrableArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.filepath = self.text_or_result("filepath", filepath)
        self.fs_conn_id = self.text_or_result("fs_conn_id", fs_conn_id)
        self.recursive = checks.boolean("recursive", recursive)

    def poke(self, context: Mapping[str, Any]) -> bool:
        return find_file(self._path(context), recursive=self.recursive) is not None

    def trigger(self, context: Mapping[str, Any]) -> FileTrigger:
        return FileTrigger(self._path(context), recursive=self.recursive, poke_interval=self.poke_interval)

    def _path(self, context: Mapping[str, Any]) -> str:
        path = Path(self.filepath)
        if path.is_absolute():
            return str(path)
        try:
            folder = context["conn"][self.fs_conn_id].extra_dejson.get("path")
        except NotFoundError:
            if self.fs_conn_id != DEFAULT_CONNECTION:
                raise
            folder = None
        return str(Path(folder or "/") / path)
