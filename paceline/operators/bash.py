"""Tasks that run a bash command."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Unpack

from paceline.authoring import templates
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import PacelineError, SkipTask
from paceline.operators import process
from paceline.operators.python import PythonOperator


class BashError(PacelineError):
    """A bash command failed."""

    def __init__(self, message: str = "", *, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class BashOperator(Operator):
    """Runs `bash -c bash_command`. Its last line of output, after `output_processor`, is the result of the task.

    The output is read with the encoding `output_encoding`.

    Exit code 0 is success, `skip_on_exit_code` (99, a list, or None) skips the task, and any other code fails the try.
    `env` replaces the environment of the worker, or extends it with `append_env=True`. `cwd` must exist on the worker and
    defaults to a temporary folder. Context values are in the environment as PACELINE_CTX_*, and
    as AIRFLOW_CTX_* under Airflow's names.
    """

    worker_runtime: ClassVar[str] = "bash"
    template_fields: Sequence[str] = ("bash_command", "env", "cwd")
    template_ext: Sequence[str] = (".sh", ".bash")

    def __init__(
        self,
        *,
        bash_command: str | XComArg,
        env: Mapping[str, str] | XComArg | None = None,
        append_env: bool = False,
        output_encoding: str = "utf-8",
        skip_on_exit_code: int | Iterable[int] | None = 99,
        cwd: str | XComArg | None = None,
        output_processor: Callable[[str], Any] = lambda line: line,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.bash_command = self.text_or_result("bash_command", bash_command)
        self.env: Any = env if env is None or isinstance(env, XComArg) else checks.mapping("env", env)
        self.append_env = checks.boolean("append_env", append_env)
        self.output_encoding = checks.text("output_encoding", output_encoding)
        codes = [skip_on_exit_code] if isinstance(skip_on_exit_code, int) else skip_on_exit_code or ()
        self.skip_on_exit_code = [checks.integer("skip_on_exit_code", code) for code in codes]
        self.cwd: Any = cwd
        self.output_processor = output_processor

    def execute(self, context: Mapping[str, Any]) -> object:
        return self.run(self.bash_command, context)

    def run(self, command: str, context: Mapping[str, Any]) -> object:
        """Run `command`; SkipTask for an exit code that skips, BashError for any other except 0."""
        with ExitStack() as stack:
            folder = self._folder() or stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-"))
            ended = process.run(["bash", "-c", command], env=self._environment(context), cwd=folder, encoding=self.output_encoding)
        if ended.exit_code in self.skip_on_exit_code:
            raise SkipTask(f"The bash command exited with {ended.exit_code}, which skips the task.")
        if ended.exit_code:
            raise BashError(f"The bash command failed: {process.describe(ended.exit_code)}.", exit_status=ended.exit_code)
        return self.output_processor(ended.last_line)

    def _folder(self) -> str | None:
        if self.cwd is None:
            return None
        if not Path(self.cwd).is_dir():
            raise BashError(f"The cwd {self.cwd!r} of the bash command is not a folder on this machine; create it.")
        return str(self.cwd)

    def _environment(self, context: Mapping[str, Any]) -> dict[str, str]:
        inherited = os.environ if self.env is None or self.append_env else {}
        own = {name: str(value) for name, value in (self.env or {}).items()}
        return {**inherited, **context_variables(context), **own}


class DecoratedBashOperator(PythonOperator, BashOperator):
    """`@task.bash`: the function returns the command, which is rendered as a template."""

    template_fields: Sequence[str] = (*PythonOperator.template_fields, "env", "cwd")
    template_ext: Sequence[str] = ()

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs | {"bash_command": "(what the function returns)"})

    def execute(self, context: Mapping[str, Any]) -> object:
        command = self.call(context)
        if not isinstance(command, str) or not command.strip():
            raise BashError(f"A @task.bash function must return the command as a non-empty str, not {command!r}.")
        renderer = templates.Renderer(
            self.dag, BashOperator.template_ext, owner=f"Task {self.task_id!r}", native=self.render_template_as_native_obj
        )
        self.bash_command = renderer.render(command, context, "bash_command")
        return self.run(self.bash_command, context)


def context_variables(context: Mapping[str, Any]) -> dict[str, str]:
    """The context values in the environment of a command, named PACELINE_CTX_*, and AIRFLOW_CTX_* for those that Airflow has."""
    ti, task = context.get("ti"), context.get("task")
    both = {
        "DAG_ID": getattr(ti, "dag_id", None),
        "TASK_ID": getattr(ti, "task_id", None),
        "TRY_NUMBER": getattr(ti, "try_number", None),
        "LOGICAL_DATE": context.get("logical_date"),
    }
    ours = {
        "RUN_ID": context.get("run_id"),
        "MAP_INDEX": context.get("map_index"),
        "DATA_INTERVAL_START": context.get("data_interval_start"),
        "DATA_INTERVAL_END": context.get("data_interval_end"),
    }
    airflows = {
        "DAG_RUN_ID": context.get("run_id"),
        "EXECUTION_DATE": context.get("logical_date"),
        "DAG_OWNER": getattr(task, "owner", None),
        "DAG_EMAIL": ",".join(getattr(task, "email", None) or ()) or None,
    }
    named = {f"PACELINE_CTX_{name}": value for name, value in {**both, **ours}.items()}
    named |= {f"AIRFLOW_CTX_{name}": value for name, value in {**both, **airflows}.items()}
    return {
        name: value.isoformat() if isinstance(value, datetime) else str(value) for name, value in named.items() if value is not None
    }
