"""Rewrites one file: its imports, its arguments and its templates. A second rewrite changes nothing."""

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper

from scheduler.migrate.arguments import Arguments
from scheduler.migrate.bound import Collector, Note
from scheduler.migrate.imports import Imports


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
    arguments = Arguments(collector.bound)
    module = wrapper.visit(arguments).visit(Imports(collector.bound, local))
    return Rewritten(
        module.bytes,
        tuple(sorted({*collector.changes, *arguments.changes})),
        tuple(sorted({*collector.unsupported, *arguments.unsupported})),
    )
