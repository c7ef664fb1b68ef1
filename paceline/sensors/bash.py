"""A sensor with a bash command."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import FailTask
from paceline.operators import process
from paceline.operators.bash import context_variables
from paceline.sensors.base import BaseSensorOperator, SensorArguments


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
