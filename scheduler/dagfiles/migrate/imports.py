"""Rewrites the imports of Airflow in a file, and the attributes of its modules. Comments and layout stay.

That needs the local names of a file that stand for Airflow's modules and names, and what each import of Airflow becomes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
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


#: The characters of names that one line of an import holds; more names stay one a line, as they were.
ONE_LINE = 60


class Imports(cst.CSTTransformer):
    """Writes Paceline's names for Airflow's. A name without a counterpart stays, unless the file does not use it."""

    def __init__(self, bound_names: Bound, used: Collection[str], lost: Collection[str], local: Callable[[str], str]) -> None:
        """`used` are the names that the file uses, and `lost` those that only removed arguments used."""
        super().__init__()
        self._lost = lost
        self._bound = bound_names
        self._used = used
        self._local = local
        self._depth = 0
        #: Our modules that a statement outside of all blocks imports already.
        self._imported: set[str] = set()

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        self._depth -= 1
        return updated_node

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        resolved = self._bound.resolve(dotted_name(original_node))
        return updated_node if resolved is None else as_expression(f"{resolved[1].module}.{resolved[1].name}")

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        is_commented = any(line.comment for line in updated_node.leading_lines) or updated_node.trailing_whitespace.comment
        statements = [new for old in updated_node.body for new in self._statements(old)]
        if self._depth == 0 and not is_commented:
            statements = [statement for statement in statements if not self._is_repeated(statement)]
        if not statements:
            # A block must keep a statement, and a comment its place.
            return updated_node.with_changes(body=[cst.Pass()]) if self._depth or is_commented else cst.RemoveFromParent()
        if len(statements) == len(updated_node.body):
            return updated_node.with_changes(body=statements)
        # The comments above the line stay above the first statement, and the one behind it stays behind that.
        first = updated_node.with_changes(body=[statements[0].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
        others = [
            cst.SimpleStatementLine([statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]) for statement in statements[1:]
        ]
        return cst.FlattenSentinel([first, *others])

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        statements = [new for old in updated_node.body for new in self._statements(old)]
        return updated_node.with_changes(body=statements or [cst.Pass()])

    def _is_repeated(self, node: cst.BaseSmallStatement) -> bool:
        """Whether an earlier statement of the rewrite already imports this module of ours."""
        if not isinstance(node, cst.Import) or len(node.names) > 1 or node.names[0].asname is not None:
            return False
        name = node.names[0].evaluated_name
        if name.partition(".")[0] != "paceline":
            return False
        known = name in self._imported
        self._imported.add(name)
        return known

    def _statements(self, node: cst.BaseSmallStatement) -> Sequence[cst.BaseSmallStatement]:
        """The statements in place of this one."""
        if isinstance(node, cst.Import):
            return self._of_import(node)
        if not isinstance(node, cst.ImportFrom):
            return [node]
        module = module_of(node)
        if (own := self._local(module)) != module:
            return self._of_own_module(node, own)
        if not is_airflow(module):
            new = of_authors(module)
            return [node if new == module else node.with_changes(module=as_expression(new))]
        if isinstance(node.names, cst.ImportStar):
            place = star_place(module)
            return [node if place is None else node.with_changes(module=as_expression(place))]
        return self._of_names(node, list(imported(node)))

    def _of_own_module(self, node: cst.ImportFrom, module: str) -> Sequence[cst.BaseSmallStatement]:
        """An import from a module of the DAGs folder, without names that only removed arguments used."""
        moved = node.with_changes(module=as_expression(module))
        if isinstance(node.names, cst.ImportStar):
            return [moved]
        aliases = [alias for alias in node.names if local_name(alias) not in self._lost]
        return [moved.with_changes(**_layout(node, aliases, 0))] if aliases else []

    def _of_import(self, node: cst.Import) -> Sequence[cst.BaseSmallStatement]:
        unchanged = [alias for alias in node.names if not self._is_replaced(alias)]
        places = [
            place
            for alias in node.names
            for place in sorted(self._bound.places.get(local_name(alias), ()))
            if place and is_airflow(alias.evaluated_name)
        ]
        if not places:
            return [node]
        return [*([node.with_changes(names=_joined(unchanged))] if unchanged else []), *_imports_of(places)]

    def _is_replaced(self, alias: cst.ImportAlias) -> bool:
        """Whether all uses of this module have a counterpart. A module without uses stays."""
        places = self._bound.places.get(local_name(alias), {""})
        return is_airflow(alias.evaluated_name) and "" not in places

    def _of_names(self, node: cst.ImportFrom, imported: list[Imported]) -> Sequence[cst.BaseSmallStatement]:
        groups: dict[str, list[cst.ImportAlias]] = {}
        modules: list[str] = []
        for each in imported:
            places = self._bound.places.get(local_name(each.node), set()) if each.module else set()
            modules += sorted(place for place in places if place)
            if each.ours is not None:
                place, _, last = each.ours.module.rpartition(".")
                place, name = (each.ours.module, each.ours.name) if each.ours.name else (place, last)
                groups.setdefault(place, []).append(_renamed(each.node, name))
            elif not places or "" in places:
                module = module_of(node)
                if each.module or not is_useless(module, local_name(each.node), self._used):
                    groups.setdefault(module, []).append(each.node)
        rewritten: list[cst.BaseSmallStatement] = [
            node.with_changes(module=as_expression(place), **_layout(node, aliases, number))
            for number, (place, aliases) in enumerate(groups.items())
        ]
        return [*rewritten, *_imports_of(modules)]


def is_useless(module: str, local: str, used: Collection[str]) -> bool:
    """Whether the import of a name without a counterpart can go: the file does not use it."""
    return local not in used and names.is_known(module)


def _imports_of(places: Sequence[str]) -> list[cst.Import]:
    """An import of each of our modules."""
    return [cst.Import([cst.ImportAlias(as_expression(place))]) for place in dict.fromkeys(places)]


def _renamed(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """The import of `name` under the name that the file uses."""
    local = local_name(alias)
    keeps = alias.asname if alias.asname is not None and local != name else None
    asname = keeps or (cst.AsName(cst.Name(local)) if local != name else None)
    return alias.with_changes(name=cst.Name(name), asname=asname)


def _joined(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    """Aliases in one line without parentheses."""
    return [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]


def _layout(node: cst.ImportFrom, aliases: list[cst.ImportAlias], number: int) -> dict[str, object]:
    """The names and parentheses of import `number` of those in place of `node`: its layout, and the comments of the names."""
    assert not isinstance(node.names, cst.ImportStar)
    if len(aliases) == len(node.names):
        return {"names": aliases}
    inner = node.lpar.whitespace_after if node.lpar is not None else None
    if node.lpar is None or not isinstance(inner, cst.ParenthesizedWhitespace):
        return {"names": _joined(aliases), "lpar": None, "rpar": None}
    spaces = [_space_after(node, alias) for alias in aliases]
    if not any(map(_is_commented, [*spaces, inner if number == 0 else None])) and sum(map(_width, aliases)) <= ONE_LINE:
        return {"names": _joined(aliases), "lpar": None, "rpar": None}
    commas = [
        cst.Comma(
            whitespace_after=cst.ParenthesizedWhitespace(
                first_line=space.first_line if space else cst.TrailingWhitespace(),
                empty_lines=space.empty_lines if space else (),
                indent=inner.indent,
                last_line=inner.last_line if following < len(aliases) else cst.SimpleWhitespace(""),
            )
        )
        for following, space in enumerate(spaces, start=1)
    ]
    separated = [alias.with_changes(comma=comma) for alias, comma in zip(aliases, commas, strict=True)]
    # The comments above the first name stay in the first import.
    start = inner if number == 0 else inner.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    return {"names": separated, "lpar": node.lpar.with_changes(whitespace_after=start), "rpar": cst.RightParen()}


def _is_commented(space: cst.ParenthesizedWhitespace | None) -> bool:
    return space is not None and bool(space.first_line.comment or any(line.comment for line in space.empty_lines))


def _width(alias: cst.ImportAlias) -> int:
    return len(alias.evaluated_name) + len(alias.evaluated_alias or "") + 2


def _space_after(node: cst.ImportFrom, alias: cst.ImportAlias) -> cst.ParenthesizedWhitespace | None:
    """The end of the line of a name, with its comment."""
    space: cst.BaseParenthesizableWhitespace | None = None
    if isinstance(alias.comma, cst.Comma):
        space = alias.comma.whitespace_after
    elif node.rpar is not None:
        space = node.rpar.whitespace_before
    return space if isinstance(space, cst.ParenthesizedWhitespace) else None
