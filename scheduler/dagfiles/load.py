"""Loads DAG files by path, so that neither they nor other files in the DAGs folder can shadow modules of Paceline or a library."""

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType

import paceline
from paceline.authoring import airflow_conf, scope, source, zones
from paceline.authoring.arguments import ACCEPTED
from paceline.authoring.dag import DAG
from paceline.exceptions import DagError, DagErrors, TaskTimeout
from scheduler.settings import airflow_options

#: Every DAG file is a module with this prefix in sys.modules. No such file exists, so no import can find one.
MODULE_PREFIX = "_paceline_dag_file_"
#: The folders of installed code, and of Paceline.
INSTALLED = tuple(
    {f"{prefix}/" for prefix in (sys.prefix, sys.base_prefix)}
    # In the environment of a bundle, the packages of the worker come after its own.
    | {f"{place}/" for place in sys.path if place.endswith("site-packages")}
    | {f"{Path(paceline.__file__).parents[1] / name}/" for name in ("paceline", "scheduler", "workers")}
)
# Authoring imports no settings and gets them here, because every process that runs user code loads DAG files.
airflow_conf.conf.options = airflow_options
#: How often a file is run again, and for how long in all. A file that takes longer than this shows its errors one by one.
MOST_RUNS = 20
MOST_S = 1.0
_MEANT = re.compile(r"unknown argument '(\w+)'; did you mean '(\w+)'\?")
#: Runs the code of the file, and returns its errors in order, and whether the last one stopped it.
Run = Callable[[CodeType], tuple[Sequence[DagError], bool]]


def preload() -> None:
    """Import every public name of Paceline, for a process that forks others: they then need not import it themselves."""
    importlib.import_module("pendulum")  # the dates of every context
    for name in paceline.__all__:
        getattr(paceline, name)


def configure(default_timezone: str, *, airflow_imports: bool) -> None:
    """Prepare this process for DAG files, before the first one is loaded. The arguments are settings of the section core.

    AirflowInstalledError if `airflow_imports` would hide an installed Apache Airflow.
    """
    zones.set_default(default_timezone)
    if airflow_imports:
        from paceline.airflow import hook

        hook.install()


def load(folder: Path, file: str, *, all_errors: bool = False) -> dict[str, DAG]:
    """Run the DAG file `folder/file` and return its DAGs by ID, in order of creation. A file may have no DAGs.

    A DAG counts if a module variable holds it or if it was opened (`with`, @dag) while the file ran. All exceptions of the file
    are propagated, including SystemExit. With `all_errors`, a file that ends early with an error is run again, to report the
    errors behind it too.
    """
    path = folder / file
    # Compiled here and never read from __pycache__, which confuses two versions of the same second and size.
    text = _text(path)
    code = compile(text, str(path), "exec", dont_inherit=True)
    # Appended at the end: config.py or json.py in a DAGs folder must not shadow a module that other code imports.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    started = time.monotonic()
    with scope.collect(defer_errors=True) as opened:
        try:
            module = _executed(code, path)
        except (MemoryError, TaskTimeout):
            raise
        except Exception as error:
            known = _errors(opened, error, path)
            if all_errors and known and time.monotonic() - started < MOST_S:
                known = further(text, path, known, ended=True, run=lambda code: _errors_of(code, text, path))
            if known and (opened.errors or len(known) > 1):
                raise _all_of(known) from None
            raise
    try:
        dags = _checked([value for value in (*opened, *vars(module).values()) if isinstance(value, DAG)], opened, text, path)
        _give_intervals(dags.values(), text)
        return dags
    except DagError as error:
        known = list(error.errors) if isinstance(error, DagErrors) else [error]
        if not all_errors or time.monotonic() - started > MOST_S:
            raise
        found = further(text, path, known, ended=False, run=lambda code: _errors_of(code, text, path))
        if len(found) == len(known):
            raise
        raise _all_of(found) from None


def _give_intervals(dags: Iterable[DAG], text: str) -> None:
    """Mark the DAGs that were written for Airflow 2, in this file or in a module that creates them."""
    if not ACCEPTED:  # the import hook for unchanged Airflow files is off
        return
    from paceline.airflow.hook import speaks_airflow_2

    is_old = speaks_airflow_2(text)
    for dag in dags:
        with suppress(OSError):
            dag.has_airflow_2_dates = is_old or speaks_airflow_2(Path(dag.at.file).read_bytes())


def _executed(code: CodeType, path: Path) -> ModuleType:
    """The new module of a file after its code has run."""
    spec = importlib.util.spec_from_file_location(module_name(path), path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - running the user's file is the purpose
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _errors(opened: scope.Collected, error: BaseException, path: Path) -> list[DagError]:
    """The errors of a file that was stopped by `error`."""
    places = {(other.file, other.line) for other in opened.errors}
    return [*opened.errors, *(other for other in _independent(error, path) if (other.file, other.line) not in places)]


def _errors_of(code: CodeType, text: str, path: Path) -> tuple[list[DagError], bool]:
    """The errors of changed code of a file, and whether one of them stopped it."""
    with scope.collect(defer_errors=True) as opened:
        try:
            # The changed module must not stay behind the one of the file.
            del sys.modules[_executed(code, path).__name__]
        except (MemoryError, TaskTimeout):
            raise
        except (Exception, SystemExit) as error:
            return _errors(opened, error, path), bool(_independent(error, path))
    return [*opened.errors, *_lost_tasks(opened, path), *_uncalled(opened, text, path)], False


def _checked(dags: list[DAG], opened: scope.Collected, text: str, path: Path) -> dict[str, DAG]:
    """The DAGs by ID, with those of asset watchers; DagError with all errors of the file."""
    errors, by_id = opened.errors, dict[str, DAG]()
    try:
        by_id = _by_id([*dags, *_watching(dags)], path)
    except DagError as error:
        errors.append(error)
    for dag in by_id.values():
        try:
            dag.validate()
        except DagError as error:
            errors.append(error)
    # A module of helpers that was written for Airflow may hold tasks, since importing it creates no DAG there.
    if by_id or not ACCEPTED:
        errors += _lost_tasks(opened, path)
    errors += _uncalled(opened, text, path)
    if errors:
        raise _all_of(errors)
    return by_id


def _watching(dags: list[DAG]) -> Iterable[DAG]:
    """The DAGs of the watchers of assets in schedules."""
    conditions = [dag.timetable.condition for dag in dags]
    if not any(asset.watchers for condition in conditions if condition is not None for asset in condition.assets()):
        return ()
    from paceline.operators.asset import watching_dags

    return watching_dags(dags).values()


def _independent(error: BaseException, path: Path) -> list[DagError]:
    """The error that stopped a file with other errors; empty for an error of Python that may only follow from those."""
    if isinstance(error, DagError):
        return [error]
    from scheduler.dagfiles.problem import advice

    text = advice(error, path)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return [source.fault(text, at=source.Location(str(path), lines[-1]))] if text and lines else []


def _all_of(errors: list[DagError]) -> DagError:
    different = list({(error.file, error.line, str(error)): error for error in errors}.values())
    return different[0] if len(different) == 1 else DagErrors(different)


def _lost_tasks(found: scope.Collected, path: Path) -> Iterator[DagError]:
    """The errors of tasks of this file that are in no DAG, and so would never run."""
    for task in found.tasks:
        if task.dag is None and task.at.file == str(path):
            yield source.fault(
                f"Task {task.task_id!r} is in no DAG, so it never runs; create it inside `with DAG(...)` or a @dag function.",
                at=task.at,
            )


def _uncalled(found: scope.Collected, text: str, path: Path) -> Iterator[DagError]:
    """The errors of @dag functions of this file that nothing in it mentions, unless they have parameters without defaults."""
    for function, called in found.functions.items():
        code = inspect.unwrap(function).__code__
        if (
            called
            or code.co_filename != str(path)
            or any(p.default is p.empty for p in inspect.signature(function).parameters.values())
        ):
            continue
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        if function.__name__ not in used:
            yield source.fault(
                f"The @dag function {function.__name__!r} is never called, so it creates no DAG; add {function.__name__}().",
                at=source.Location(str(path), code.co_firstlineno),
            )


def forget(folder: Path, file: str) -> None:
    """Undo the effects of `load` on this process."""
    sys.modules.pop(module_name(folder / file), None)
    sys.path.remove(str(folder))


def modules_below(folder: Path) -> dict[str, Path]:
    """Return the modules that DAG files imported from the DAGs folder, without the DAG files themselves."""
    return {
        name: Path(module.__file__)
        for name, module in are_below(folder).items()
        if module.__file__ is not None and not name.startswith(MODULE_PREFIX)
    }


def are_below(folder: Path, names: Sequence[str] | None = None) -> dict[str, ModuleType]:
    """Return the modules of this process that are files of the folder, or packages without __init__.py of folders in it.

    An environment of Python inside the folder, or Paceline itself, is no part of it. `names` are those to examine, by default all.
    """
    start = f"{folder}/"
    installed = tuple(place for place in INSTALLED if place.startswith(start))
    found = {}
    for name in list(sys.modules) if names is None else names:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None and isinstance(module, ModuleType) and (places := list(vars(module).get("__path__") or ())):
            file = min(places, key=lambda place: place.startswith(start))  # one elsewhere, if there is any
        if isinstance(file, str) and file.startswith(start) and not (installed and file.startswith(installed)):
            assert module is not None
            found[name] = module
    return found


def _text(path: Path) -> str:
    """Return the source as text. It may have a BOM, or declare another encoding in its first lines (PEP 263)."""
    raw = path.read_bytes()
    try:
        return importlib.util.decode_source(raw)
    except (UnicodeDecodeError, SyntaxError):
        at = source.Location(str(path), _first_undecodable_line(raw))
        raise source.fault(
            f"{path.name} is not UTF-8: save it as UTF-8, or declare its encoding in the first line (# -*- coding: latin-1 -*-).",
            at=at,
        ) from None


def _first_undecodable_line(raw: bytes) -> int:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw.count(b"\n", 0, error.start) + 1
    return 1


def module_name(path: Path) -> str:
    """The name of the module of a DAG file."""
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{MODULE_PREFIX}{digest}_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"


def _by_id(dags: list[DAG], path: Path) -> dict[str, DAG]:
    by_id: dict[str, DAG] = {}
    for dag in dags:
        first = by_id.setdefault(dag.dag_id, dag)
        if first is not dag:
            at = source.Location(str(path), dag.line)
            raise source.fault(
                f"{path.name} defines two DAGs with the ID {dag.dag_id!r}, in lines {first.line} and {dag.line}; rename one.", at=at
            )
    return by_id


def further(text: str, path: Path, errors: Sequence[DagError], *, ended: bool, run: Run) -> list[DagError]:
    """The errors of the file, with those that show once `errors` are corrected. The last of these has `ended` the file.

    An error of a task waits for the end of the file by itself (see authoring/scope). This is for errors that stop the file, such as
    one of a DAG or of an edge, and for the other arguments of a call with a wrong one.
    """
    tree, deadline = ast.parse(text), time.monotonic() + MOST_S
    known, fresh = list(errors), list(errors)
    for _ in range(MOST_RUNS):
        changed = [_correct(tree, error, path, may_drop=ended and error is fresh[-1]) for error in fresh]
        if not any(changed) or time.monotonic() > deadline:
            break
        found, ended = run(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True))
        lines, sentences = {error.line for error in known}, {str(error) for error in known}
        fresh = [error for error in found if error.file == str(path) and str(error) not in sentences]
        # In the line of another error, one that names no argument may only follow from the correction.
        known += [
            error for error in fresh if error.line not in lines or _argument(tree, error.line or 0, _sentence(error)) is not None
        ]
    return sorted(known, key=lambda error: error.line or 0) if len(known) > len(errors) else known


def _correct(tree: ast.Module, error: DagError, path: Path, *, may_drop: bool) -> bool:
    """Remove the cause of an error from the tree. Without `may_drop`, only an argument. False if the cause is unknown."""
    if error.file != str(path) or error.line is None:
        return False
    found = _argument(tree, error.line, _sentence(error))
    if found is None:
        return may_drop and _without_statement(tree, error.line)
    call, argument = found
    meant = _MEANT.search(str(error))
    if meant is not None and meant[1] == argument.arg and all(other.arg != meant[2] for other in call.keywords):
        argument.arg = meant[2]
    else:
        call.keywords.remove(argument)
    return True


def _sentence(error: DagError) -> str:
    """The part of the message behind the name of the DAG and the task."""
    return str(error).partition(": ")[2] or str(error)


def _argument(tree: ast.Module, line: int, sentence: str) -> tuple[ast.Call, ast.keyword] | None:
    """The argument by name that the sentence names, in the innermost call of the line that has it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _covers(node, line)]
    for call in sorted(calls, key=lambda node: (node.end_lineno or 0) - node.lineno):
        for argument in call.keywords:
            if argument.arg and re.search(rf"\b{argument.arg}\b", sentence):
                return call, argument
    return None


def _without_statement(tree: ast.Module, line: int) -> bool:
    """Replace an expression whose value nothing uses by `pass`, or `@task.some` by `@task`."""
    for node in ast.walk(tree):
        for body in _bodies(node):
            for place, statement in enumerate(body):
                if isinstance(statement, ast.Expr) and _covers(statement, line):
                    body[place] = ast.copy_location(ast.Pass(), statement)
                    return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for place, decorator in enumerate(node.decorator_list):
                named = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(named, ast.Attribute) and _covers(decorator, line):
                    node.decorator_list[place] = named.value
                    return True
    return False


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(found := getattr(node, name, None), list):
            yield found


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
