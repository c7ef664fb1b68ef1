"""Rewrites one file: its imports, its arguments and its templates. A second rewrite changes nothing."""

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper

from paceline.airflow import names
from paceline.airflow.old import speaks_airflow_2
from scheduler.dagfiles.migrate.arguments import Arguments
from scheduler.dagfiles.migrate.bound import Collector, Note, Used
from scheduler.dagfiles.migrate.imports import Imports, is_useless


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
