"""Sensors of the machine of the worker: they wait for a file, or for the exit code of a bash command."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from paceline.authoring.triggers import FileTrigger, find_file
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import FailTask, NotFoundError
from paceline.operators import process
from paceline.operators.bash import context_variables
from paceline.sensors.base import BaseSensorOperator, DeferrableArguments, DeferrableSensor, SensorArguments

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


class BashSensor(BaseSensorOperator):
    """Waits until `bash -c bash_command` exits with 0.

    Any other code means "not yet"; with `retry_exit_code`, only that code does, and the others fail the task. `env`
    replaces the environment of the worker. The output is read with the encoding `output_encoding`.
    """

    template_fields: Sequence[str] = ("bash_command", "env")

    def __init__(
        self,
        *,
        bash_command: str | XComArg,
        env: Mapping[str, str] | XComArg | None = None,
        output_encoding: str = "utf-8",
        retry_exit_code: int | None = None,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.bash_command = self.text_or_result("bash_command", bash_command)
        self.env: Any = env if env is None or isinstance(env, XComArg) else checks.mapping("env", env)
        self.output_encoding = checks.text("output_encoding", output_encoding)
        self.retry_exit_code = None if retry_exit_code is None else checks.integer("retry_exit_code", retry_exit_code)

    def poke(self, context: Mapping[str, Any]) -> bool:
        own = os.environ if self.env is None else {name: str(value) for name, value in self.env.items()}
        environment = {**own, **context_variables(context)}
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            ended = process.run(["bash", "-c", self.bash_command], env=environment, cwd=folder, encoding=self.output_encoding)
        if ended.exit_code and self.retry_exit_code is not None and ended.exit_code != self.retry_exit_code:
            raise FailTask(f"The bash command failed: {process.describe(ended.exit_code)}.")
        return ended.exit_code == 0
