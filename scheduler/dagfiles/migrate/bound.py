"""The local names of a file that stand for Airflow's modules and names, and what each import of Airflow becomes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import PositionProvider

from paceline.airflow import names
from paceline.airflow.names import Ours

#: The modules that are in `paceline` now and were in `scheduler`.
OF_AUTHORS = {"", "exceptions", "operators", "quality", "sensors", "timetables", "triggers"}


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """A line of the original file, and what changes there or what to do."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Imported:
    """One name of an import: the node, and its counterpart. None: it stays, because Paceline has no counterpart."""

    node: cst.ImportAlias
    ours: Ours | None
    #: Airflow's module, if the name is one of its modules.
    module: str = ""


@dataclass(slots=True)
class Bound:
    """The meanings of the local names of a file."""

    #: {local name: Airflow's module}.
    modules: dict[str, str] = field(default_factory=dict)
    #: {local name: the name of Airflow or Paceline, such as DAG or BashOperator}.
    names: dict[str, str] = field(default_factory=dict)
    #: {local name of a module: our modules that its uses need}; with "" if one use has no counterpart.
    places: dict[str, set[str]] = field(default_factory=dict)

    def resolve(self, dotted: str) -> tuple[str, Ours] | None:
        """The local module and our name for `module.name`, if it is a name of Airflow with a counterpart."""
        for local, module in self.modules.items():
            if dotted.startswith(f"{local}."):
                inner, _, name = f"{module}.{dotted[len(local) + 1 :]}".rpartition(".")
                if (ours := names.find(inner, name)) is not None and ours.name:
                    return local, ours
        return None

    def role(self, function: cst.BaseExpression) -> str:
        """The last part of the name of Airflow that is called: DAG, dag, task or the name of an operator; empty for others."""
        dotted = dotted_name(function).removesuffix(".partial").removesuffix(".override")
        first = dotted.split(".")[0]
        if first in self.names:
            return self.names[first]
        return resolved[1].name if (resolved := self.resolve(dotted)) is not None else ""


class Collector(cst.CSTVisitor):
    """Collects the local names of a file, and notes on its imports with the lines of the original."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, local: Callable[[str], str]) -> None:
        super().__init__()
        self.bound = Bound()
        self.changes: list[Note] = []
        self.unsupported: list[Note] = []
        #: The names without a counterpart that an import names: line, module, {local name: name}.
        self.missing: list[tuple[int, str, dict[str, str]]] = []
        self._local = local

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = module_of(node)
        line = self._line(node)
        if (own := self._local(module)) != module:
            self.changes.append(Note(line, f"{module} is {own} in the DAGs folder"))
        elif (new := of_authors(module)) != module:
            self.changes.append(Note(line, f"{module} -> {new}"))
        elif module.split(".")[0] == "paceline" and not isinstance(node.names, cst.ImportStar):
            self.bound.names |= {local_name(alias): alias.evaluated_name for alias in node.names}
        elif is_airflow(module):
            self._note(node, module, line)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            if is_airflow(alias.evaluated_name):
                self.bound.modules[local_name(alias)] = alias.evaluated_name
                if not names.is_known(alias.evaluated_name):
                    self.unsupported.append(Note(self._line(node), names.reason(alias.evaluated_name)))
        return False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        dotted = dotted_name(node)
        if (resolved := self.bound.resolve(dotted)) is not None:
            local, ours = resolved
            self.bound.places.setdefault(local, set()).add(ours.module)
            self.changes.append(Note(self._line(node), f"{dotted} -> {ours.module}.{ours.name}"))
        elif (lost := self._lost(dotted)) is not None:
            self.bound.places.setdefault(lost, set()).add("")
            module, _, name = f"{self.bound.modules[lost]}.{dotted[len(lost) + 1 :]}".rpartition(".")
            self.unsupported.append(Note(self._line(node), names.reason(module, name)))

    def _lost(self, dotted: str) -> str | None:
        """The local module of a name without a counterpart. Parts of longer names do not count as names."""
        for local, module in self.bound.modules.items():
            rest = dotted.removeprefix(f"{local}.")
            if rest != dotted and "." not in rest and module in names.MODULES and not names.is_known(f"{module}.{rest}"):
                return local
        return None

    def _note(self, node: cst.ImportFrom, module: str, line: int) -> None:
        if isinstance(node.names, cst.ImportStar):
            if (place := star_place(module)) is None:
                self.unsupported.append(Note(line, f"name what the file needs from {module} instead of *."))
            else:
                self.changes.append(Note(line, f"{module} -> {place}"))
            return
        missing: dict[str, str] = {}
        for each in imported(node):
            name, local, ours = each.node.evaluated_name, local_name(each.node), each.ours
            if ours is not None:
                self.bound.names[local] = name
                self.changes.append(Note(line, f"{module}.{name} -> {ours.module}{ours.name and '.'}{ours.name}"))
            elif each.module:
                self.bound.modules[local] = each.module
            else:
                missing[local] = name
        if missing:
            self.missing.append((line, module, missing))

    def _line(self, node: cst.CSTNode) -> int:
        line: int = self.get_metadata(PositionProvider, node).start.line
        return line


class Used(cst.CSTVisitor):
    """Collects the names that a file uses outside of imports."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def imported(node: cst.ImportFrom) -> Iterator[Imported]:
    """The names of an import from one of Airflow's modules, each with its counterpart."""
    module = module_of(node)
    assert not isinstance(node.names, cst.ImportStar)
    for alias in node.names:
        name = alias.evaluated_name
        ours = names.find(module, name)
        inner = f"{module}.{name}"
        yield Imported(alias, ours, module=inner if ours is None and names.is_known(inner) else "")


def star_place(module: str) -> str | None:
    """Our module with all names of a module of Airflow, for `import *`; None if they are in several or renamed."""
    if module not in names.MODULES:
        return None
    places = {ours.module if ours is not None and ours.name == name else None for name, ours in names.names_of(module)}
    return places.pop() if len(places) == 1 else None


def of_authors(module: str) -> str:
    """The module from which authors import now what they imported from the engine before there was a package `paceline`."""
    package, _, inner = module.partition(".")
    return f"paceline{module.removeprefix(package)}" if package == "scheduler" and inner in OF_AUTHORS else module


def is_airflow(module: str) -> bool:
    return module.partition(".")[0] == "airflow"


def module_of(node: cst.ImportFrom) -> str:
    """The module of an import; empty for a relative one."""
    return "" if node.relative or node.module is None else dotted_name(node.module)


def dotted_name(node: cst.BaseExpression) -> str:
    """`a.b.c` for such an expression; empty for any other."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.insert(0, node.attr.value)
        node = node.value
    return ".".join([node.value, *parts]) if isinstance(node, cst.Name) else ""


def local_name(alias: cst.ImportAlias) -> str:
    """The name that an import binds, with its dots for `import a.b`."""
    return alias.evaluated_alias or alias.evaluated_name


def as_expression(dotted: str) -> cst.Name | cst.Attribute:
    first, *rest = dotted.split(".")
    expression: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        expression = cst.Attribute(expression, cst.Name(part))
    return expression
