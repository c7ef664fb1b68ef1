"""Functions that run in another Python: `@task.virtualenv`, `@task.external_python` and their branches."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import pickle
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import PacelineError, SkipTask
from paceline.operators import process
from paceline.operators.branch import BranchPythonOperator
from paceline.operators.python import PythonArguments, PythonOperator, PythonTaskArguments

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context

#: The program that calls the function. Its arguments come pickled, since they come from this worker; its result as JSON.
_PROGRAM = """\
from __future__ import annotations
import json, pickle, sys
with open(sys.argv[1], "rb") as file:
    given = pickle.load(file)
virtualenv_string_args = given["string_args"]
{source}
with open(sys.argv[2], "w") as file:
    json.dump({name}(*given["args"], **given["kwargs"]), file)
"""


class OtherPythonError(PacelineError):
    """The other Python failed."""


class OtherPythonTaskArguments(PythonTaskArguments, total=False):
    """The arguments of tasks that run in another Python, except the function, its own arguments, and the Python."""

    string_args: Iterable[str] | None
    env_vars: Mapping[str, str] | XComArg | None
    inherit_env: bool
    skip_on_exit_code: int | Iterable[int] | None
    expect_airflow: bool
    expect_pendulum: bool
    serializer: str | None
    use_dill: bool


class OtherPythonArguments(OtherPythonTaskArguments, PythonArguments, total=False):
    """The same with the arguments of the function."""


class ExternalPythonOperator(PythonOperator):
    """Calls the function with the Python at the path `python`, such as /opt/env/bin/python; by default that of the worker.

    Only the source of the function goes there, so it imports its modules itself. It receives its arguments and context
    variables that are text, numbers, dates, lists or dicts, and returns JSON. `expect_airflow`, `expect_pendulum`,
    `serializer` and `use_dill` are accepted as in Airflow and have no effect. `env_vars` are added to the environment of the
    worker, or replace it with `inherit_env=False`. `string_args` is a list of texts that the function finds in the global variable
    `virtualenv_string_args`. An exit code in `skip_on_exit_code` skips the task.
    """

    template_fields: Sequence[str] = (*PythonOperator.template_fields, "python", "env_vars")

    def __init__(
        self,
        *,
        python: str | XComArg | None = None,
        python_callable: Callable[..., Any],
        string_args: Iterable[str] | None = None,
        env_vars: Mapping[str, str] | XComArg | None = None,
        inherit_env: bool = True,
        skip_on_exit_code: int | Iterable[int] | None = None,
        expect_airflow: bool = True,
        expect_pendulum: bool = False,
        serializer: str | None = None,
        use_dill: bool = False,
        **kwargs: Unpack[PythonArguments],
    ) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        if not inspect.isfunction(python_callable) or python_callable.__name__ == "<lambda>":
            raise self.argument_checks().refuse(
                "python_callable must be a function with a name, because its source runs in another Python."
            )
        self.python: Any = sys.executable if python is None else python
        self.string_args = list(string_args or ())
        self.env_vars: Any = {} if env_vars is None else env_vars
        self.inherit_env = inherit_env
        codes = [skip_on_exit_code] if isinstance(skip_on_exit_code, int) else skip_on_exit_code or ()
        self.skip_on_exit_code = [self.argument_checks().integer("skip_on_exit_code", code) for code in codes]

    def call(self, context: Mapping[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            return self.call_with(str(self.python), Path(folder), context)

    def call_with(self, python: str, folder: Path, context: Mapping[str, Any]) -> Any:
        """Call the function with another Python; OtherPythonError if that fails. `folder` is for the files of the call."""
        args, kwargs = self.arguments(context)
        known = {name: _plain(value) for name, value in kwargs.items()}
        named = inspect.signature(self.python_callable).parameters
        for name in named.keys() & {name for name, value in known.items() if value is _OTHER}:
            raise OtherPythonError(
                f"The context variable {name!r} cannot be passed to another Python; pass parts of it as arguments."
            )
        given = {
            "args": [value if (plain := _plain(value)) is _OTHER else plain for value in args],
            "kwargs": {name: value for name, value in known.items() if value is not _OTHER},
            "string_args": self.string_args,
        }
        program, input_file, output = folder / "program.py", folder / "arguments", folder / "result.json"
        program.write_text(_PROGRAM.format(source=source_of(self.python_callable), name=self.python_callable.__name__))
        input_file.write_bytes(pickle.dumps(given, protocol=4))
        self.run_command([python, str(program), str(input_file), str(output)], folder)
        return json.loads(output.read_text())

    def run_command(self, command: Sequence[str], folder: Path) -> None:
        """Run a command, whose output goes to the log; SkipTask or OtherPythonError by its exit code."""
        inherited = os.environ if self.inherit_env else {"PATH": os.environ.get("PATH", os.defpath)}
        try:
            ended = process.run(command, env={**inherited, **self.env_vars}, cwd=str(folder))
        except FileNotFoundError:
            raise OtherPythonError(f"There is no {command[0]!r} on this worker; install it, or correct `python`.") from None
        if ended.exit_code in self.skip_on_exit_code:
            raise SkipTask(f"The function exited with {ended.exit_code}, which skips the task.")
        if ended.exit_code:
            raise OtherPythonError(f"{Path(command[0]).name} failed with {process.describe(ended.exit_code)}: {ended.last_line}")


class PythonVirtualenvOperator(ExternalPythonOperator):
    """Calls the function in a virtual environment with the packages `requirements`: a list, or the text of a file for pip.

    It is created for each try and deleted afterwards, or kept below `venv_cache_path` and used again for equal requirements.
    `python_version` is that of a Python on the worker, such as "3.12". With `system_site_packages` the packages of that Python
    are there too. `pip_install_options` are further options of `pip install`, and `index_urls` its package indexes;
    `index_urls_from_connection_ids` is not supported. The further arguments are those of
    ExternalPythonOperator.
    """

    template_fields: Sequence[str] = (*PythonOperator.template_fields, "requirements", "index_urls", "venv_cache_path", "env_vars")
    template_ext: Sequence[str] = (".txt",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        requirements: Iterable[str] | str | XComArg | None = None,
        python_version: str | None = None,
        system_site_packages: bool = True,
        pip_install_options: Iterable[str] | None = None,
        index_urls: Iterable[str] | str | None = None,
        index_urls_from_connection_ids: None = None,
        venv_cache_path: str | os.PathLike[str] | None = None,
        **kwargs: Unpack[OtherPythonArguments],
    ) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        if index_urls_from_connection_ids is not None:
            raise self.argument_checks().refuse(
                "index_urls_from_connection_ids is not supported; write index_urls='{{ conn.x.get_uri() }}'."
            )
        self.requirements: Any = [] if requirements is None else requirements
        self.python_version = python_version
        self.system_site_packages = self.argument_checks().boolean("system_site_packages", system_site_packages)
        self.pip_install_options = list(pip_install_options or ())
        self.index_urls: Any = [index_urls] if isinstance(index_urls, str) else list(index_urls or ())
        self.venv_cache_path: Any = None if venv_cache_path is None else os.fspath(venv_cache_path)

    def call(self, context: Mapping[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="paceline-") as name:
            folder = Path(name)
            return self.call_with(str(self._environment(folder) / "bin" / "python"), folder, context)

    def _environment(self, folder: Path) -> Path:
        """The folder of the virtual environment, with all packages in it."""
        required = self.requirements if isinstance(self.requirements, str) else "\n".join(map(str, self.requirements))
        options = [f"--index-url={url}" if not place else f"--extra-index-url={url}" for place, url in enumerate(self.index_urls)]
        options += self.pip_install_options
        if self.venv_cache_path is None:
            return self._create(folder / "venv", required, options, folder)
        named = json.dumps([required, options, self.python_version, self.system_site_packages, sys.version])
        cached = Path(self.venv_cache_path) / f"venv-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
        if not (cached / "complete").exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(cached, ignore_errors=True)
            self._create(cached, required, options, folder)
            (cached / "complete").touch()
        return cached

    def _create(self, venv: Path, required: str, options: Sequence[str], folder: Path) -> Path:
        python = sys.executable if self.python_version is None else f"python{self.python_version}"
        packages = ["--system-site-packages"] if self.system_site_packages else []
        self.run_command([python, "-m", "venv", *packages, str(venv)], folder)
        if required.strip():
            (folder / "requirements.txt").write_text(required)
            pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-r"]
            self.run_command([*pip, str(folder / "requirements.txt"), *options], folder)
        return venv


class BranchExternalPythonOperator(ExternalPythonOperator, BranchPythonOperator):
    """A branch whose function runs in another Python, see ExternalPythonOperator and BranchPythonOperator."""

    def execute(self, context: Context) -> object:
        return BranchPythonOperator.execute(self, context)


class BranchPythonVirtualenvOperator(PythonVirtualenvOperator, BranchPythonOperator):
    """A branch whose function runs in a virtual environment, see PythonVirtualenvOperator and BranchPythonOperator."""

    def execute(self, context: Context) -> object:
        return BranchPythonOperator.execute(self, context)


def source_of(function: Callable[..., Any]) -> str:
    """The source of a function without its decorators."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef), "a function with a name"
    definition.decorator_list = []
    return ast.unparse(definition)


_OTHER: Any = object()


def _plain(value: Any) -> Any:
    """A value that any Python can unpickle: dates of pendulum become those of Python. `_OTHER` if there is none."""
    if isinstance(value, datetime):
        # A proxy of the context is no datetime for pickle.
        return datetime.fromisoformat((value if value.utcoffset() is None else value.astimezone(UTC)).isoformat())
    if value is None or isinstance(value, str | bytes | int | float | bool | date):
        return value
    if isinstance(value, Mapping):
        items = {key: _plain(item) for key, item in value.items()}
        return _OTHER if any(item is _OTHER for item in items.values()) else items
    if isinstance(value, list | tuple | set | frozenset):
        entries = [_plain(item) for item in value]
        return _OTHER if any(item is _OTHER for item in entries) else type(value)(entries)
    return _OTHER
