"""Migrates a DAGs folder: rewrites each file, loads both versions, and compares their DAGs."""

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper

from paceline.airflow import hook, names
from paceline.airflow.hook import speaks_airflow_2
from scheduler.dagfiles.migrate.arguments import Arguments
from scheduler.dagfiles.migrate.imports import Collector, Imports, Note, Used, is_useless
from scheduler.dagfiles.parser import Parser
from scheduler.dagfiles.watch import dag_files
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file after the rewrite, and what changed or cannot be changed, by line of the original."""

    content: bytes
    changes: tuple[Note, ...]
    unsupported: tuple[Note, ...]


def rewrite(content: bytes, *, package: str = "", modules: Collection[str] = ()) -> Rewritten:
    """Rewrite a file. `package` is the package that the DAGs folder is in Airflow, and `modules` are those that it holds."""

    def local(module: str) -> str:
        """The name of a module of the DAGs folder itself, which a file may name by the package of the folder."""
        own = module.removeprefix(f"{package}.")
        return own if package and own in modules else module

    try:
        wrapper = MetadataWrapper(cst.parse_module(content))
    except cst.ParserSyntaxError as error:
        return Rewritten(content, (), (Note(error.raw_line, f"Python cannot read the file: {error.message}"),))
    collector = Collector(local)
    wrapper.visit(collector)
    arguments = Arguments(collector.bound, speaks_airflow_2=speaks_airflow_2(content))
    module, before, used = wrapper.visit(arguments), Used(), Used()
    wrapper.visit(before)
    module.visit(used)
    changes, unsupported = [*collector.changes, *arguments.changes], [*collector.unsupported, *arguments.unsupported]
    for line, place, missing in collector.missing:
        useless = {local for local in missing if is_useless(place, local, used.names)}
        changes += [Note(line, f"{missing[name]} is removed: the file does not use it") for name in useless]
        given = [name for local, name in missing.items() if local not in useless]
        unsupported += [Note(line, text) for text in (names.complaints(place, given) if given else ())]
    module = module.visit(Imports(collector.bound, used.names, before.names - used.names, local))
    return Rewritten(module.bytes, tuple(sorted({*changes})), tuple(sorted({*unsupported})))


#: Seconds between two looks at the files that are being loaded.
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The DAGs of a file as data, by ID, or why it cannot be loaded."""

    dags: Mapping[str, object]
    problem: str = ""
    line: int | None = None
    #: Whether it loads only with core.airflow_imports, because it uses provider packages for Airflow.
    with_hook: bool = False


@dataclass(frozen=True, slots=True)
class FileReport:
    """A Python file of the folder. `before` is None if it was not loaded; `after` is None for a module without DAGs."""

    path: str
    old: bytes
    rewritten: Rewritten
    before: Loaded | None = None
    after: Loaded | None = None

    @property
    def is_changed(self) -> bool:
        return self.rewritten.content != self.old

    @property
    def loads(self) -> bool:
        return self.after is not None and not self.after.problem

    @property
    def differences(self) -> list[str]:
        """The DAGs that differ between the two versions, each as a message; empty if a version does not load."""
        if self.before is None or self.after is None or self.before.problem or self.after.problem:
            return []
        return list(_differences(self.before.dags, self.after.dags))


def migrate(folder: Path, settings: Settings, *, compare: bool = True) -> list[FileReport]:
    """Rewrite all Python files of the folder in memory, and load them before and after it. Writes nothing to the folder.

    Without `compare`, or with Apache Airflow installed, the unchanged files are not loaded.
    """
    folder = folder.absolute()
    package = _package(folder)
    sources = {str(path.relative_to(folder)): path.read_bytes() for path in _python_files(folder)}
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources}
    reports = [FileReport(path, old, _rewritten(old, package, modules)) for path, old in sources.items()]
    with tempfile.TemporaryDirectory(prefix="paceline-migrate-") as temporary:
        copy = Path(temporary) / folder.name
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        for report in reports:
            if report.is_changed:
                (copy / report.path).write_bytes(report.rewritten.content)
        after = load(copy, settings, unchanged=False)
        failed = {path for path, result in after.items() if result.problem}
        again = {report.path for report in reports if report.path in failed and b"airflow" in report.rewritten.content}
        loaded = load(copy, settings, unchanged=True, only=again) if again else {}
        after |= {path: replace(result, with_hook=True) for path, result in loaded.items() if not result.problem}
        after = {path: _moved(loaded, copy, folder) for path, loaded in after.items()}
    before = load(folder, settings, unchanged=True) if compare and hook.airflow_folder() is None else {}
    return [replace(report, before=before.get(report.path), after=after.get(report.path)) for report in reports]


def write(folder: Path, report: FileReport) -> None:
    """Replace a file by its migrated version. It keeps its mode, and a crash leaves the old or the new version."""
    path = folder / report.path
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        stream.write(report.rewritten.content)
    new = Path(stream.name)
    try:
        shutil.copymode(path, new)
        new.replace(path.resolve())
    finally:
        new.unlink(missing_ok=True)


def load(folder: Path, settings: Settings, *, unchanged: bool, only: Collection[str] | None = None) -> dict[str, Loaded]:
    """Load the DAG files of a folder, all or `only` some, each in its own process; `unchanged` ones with the import hook."""
    core = settings.core.model_copy(update={"airflow_imports": unchanged})
    paths = settings.paths.model_copy(update={"dags_folder": folder})
    # The notes on a rewritten file tell that its dates differ; the comparison is about everything else.
    intervals = {"create_cron_data_intervals": True, "create_delta_data_intervals": True}
    scheduler = settings.scheduler.model_copy(update=intervals)
    parser = Parser(settings.model_copy(update={"core": core, "paths": paths, "scheduler": scheduler}))
    files = dag_files(folder, settings.core.dag_ignore_file_syntax) or ()
    waiting = sorted((file for file in files if only is None or file in only), reverse=True)
    results: dict[str, Loaded] = {}
    try:
        while waiting or parser.busy:
            while waiting and parser.busy < settings.scheduler.parsing_processes:
                parser.submit([waiting.pop()])
            parser.wait(LOOK_S)
            for answer in parser.collect():
                message, line = (answer.problem.message, answer.problem.line) if answer.problem else ("", None)
                results[answer.file] = Loaded({row.dag_id: json.loads(row.data) for row in answer.dags}, message, line)
    finally:
        parser.stop()
    return results


def _moved(loaded: Loaded, copy: Path, folder: Path) -> Loaded:
    """The result as if the copy had been loaded from the folder itself."""
    dags = json.loads(json.dumps(loaded.dags).replace(json.dumps(str(copy))[1:-1], json.dumps(str(folder))[1:-1]))
    return replace(loaded, dags=dags, problem=loaded.problem.replace(str(copy), str(folder)))


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    for dag_id in sorted(before.keys() | after.keys()):
        old, new = before.get(dag_id), after.get(dag_id)
        if old is None or new is None:
            yield f"DAG {dag_id} is only in the {'migrated' if old is None else 'unchanged'} file."
        elif isinstance(old, dict) and isinstance(new, dict) and old != new:
            changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            yield f"DAG {dag_id} differs in {', '.join(changed)}."


def _python_files(folder: Path) -> Iterator[Path]:
    """The Python files of the folder, without those of hidden folders and virtual environments."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__pycache__")) and not (path / "pyvenv.cfg").exists():
            yield from _python_files(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def _rewritten(old: bytes, package: str, modules: set[str]) -> Rewritten:
    # `scheduler` is the former name of `paceline`.
    concerns_us = b"airflow" in old or b"scheduler" in old
    return rewrite(old, package=package, modules=modules) if concerns_us else Rewritten(old, (), ())


def _package(folder: Path) -> str:
    """The package that the folder is, if it is one inside of `airflow`, such as airflow.example_dags."""
    parts: list[str] = []
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) if len(parts) > 1 and parts[0] == "airflow" else ""
