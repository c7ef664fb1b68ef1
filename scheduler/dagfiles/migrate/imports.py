"""Rewrites the imports of Airflow in a file, and the attributes of its modules. Comments and layout stay."""

from collections.abc import Callable, Collection, Sequence

import libcst as cst

from paceline.airflow import names
from scheduler.dagfiles.migrate import bound
from scheduler.dagfiles.migrate.bound import Bound, Imported

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
        resolved = self._bound.resolve(bound.dotted_name(original_node))
        return updated_node if resolved is None else bound.as_expression(f"{resolved[1].module}.{resolved[1].name}")

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
        module = bound.module_of(node)
        if (own := self._local(module)) != module:
            return self._of_own_module(node, own)
        if not bound.is_airflow(module):
            new = bound.of_authors(module)
            return [node if new == module else node.with_changes(module=bound.as_expression(new))]
        if isinstance(node.names, cst.ImportStar):
            place = bound.star_place(module)
            return [node if place is None else node.with_changes(module=bound.as_expression(place))]
        return self._of_names(node, list(bound.imported(node)))

    def _of_own_module(self, node: cst.ImportFrom, module: str) -> Sequence[cst.BaseSmallStatement]:
        """An import from a module of the DAGs folder, without names that only removed arguments used."""
        moved = node.with_changes(module=bound.as_expression(module))
        if isinstance(node.names, cst.ImportStar):
            return [moved]
        aliases = [alias for alias in node.names if bound.local_name(alias) not in self._lost]
        return [moved.with_changes(**_layout(node, aliases, 0))] if aliases else []

    def _of_import(self, node: cst.Import) -> Sequence[cst.BaseSmallStatement]:
        unchanged = [alias for alias in node.names if not self._is_replaced(alias)]
        places = [
            place
            for alias in node.names
            for place in sorted(self._bound.places.get(bound.local_name(alias), ()))
            if place and bound.is_airflow(alias.evaluated_name)
        ]
        if not places:
            return [node]
        return [*([node.with_changes(names=_joined(unchanged))] if unchanged else []), *_imports_of(places)]

    def _is_replaced(self, alias: cst.ImportAlias) -> bool:
        """Whether all uses of this module have a counterpart. A module without uses stays."""
        places = self._bound.places.get(bound.local_name(alias), {""})
        return bound.is_airflow(alias.evaluated_name) and "" not in places

    def _of_names(self, node: cst.ImportFrom, imported: list[Imported]) -> Sequence[cst.BaseSmallStatement]:
        groups: dict[str, list[cst.ImportAlias]] = {}
        modules: list[str] = []
        for each in imported:
            places = self._bound.places.get(bound.local_name(each.node), set()) if each.module else set()
            modules += sorted(place for place in places if place)
            if each.ours is not None:
                place, _, last = each.ours.module.rpartition(".")
                place, name = (each.ours.module, each.ours.name) if each.ours.name else (place, last)
                groups.setdefault(place, []).append(_renamed(each.node, name))
            elif not places or "" in places:
                module = bound.module_of(node)
                if each.module or not is_useless(module, bound.local_name(each.node), self._used):
                    groups.setdefault(module, []).append(each.node)
        rewritten: list[cst.BaseSmallStatement] = [
            node.with_changes(module=bound.as_expression(place), **_layout(node, aliases, number))
            for number, (place, aliases) in enumerate(groups.items())
        ]
        return [*rewritten, *_imports_of(modules)]


def is_useless(module: str, local: str, used: Collection[str]) -> bool:
    """Whether the import of a name without a counterpart can go: the file does not use it."""
    return local not in used and names.is_known(module)


def _imports_of(places: Sequence[str]) -> list[cst.Import]:
    """An import of each of our modules."""
    return [cst.Import([cst.ImportAlias(bound.as_expression(place))]) for place in dict.fromkeys(places)]


def _renamed(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """The import of `name` under the name that the file uses."""
    local = bound.local_name(alias)
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
