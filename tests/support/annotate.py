"""Writes the annotations that an example lacks: `Any`, where its author named no type. Then strict rules check all of it."""

import libcst as cst

ANY = cst.Annotation(cst.Name("Any"))
#: Generic classes that examples name without their arguments.
BARE = {"dict": "dict[str, Any]", "list": "list[Any]"}


def annotated(text: str) -> str:
    """The text of a file with a type for each parameter and each result."""
    module = cst.parse_module(text)
    changed = module.visit(Annotate())
    if changed.deep_equals(module) or "import Any" in changed.code:
        return changed.code
    # Behind the docstring and imports of __future__, which must come first.
    lines = list(changed.body)
    place = next(at for at, line in enumerate(lines) if not _is_first(line))
    lines.insert(place, cst.parse_statement("from typing import Any"))
    return changed.with_changes(body=lines).code


class Annotate(cst.CSTTransformer):
    """Adds the annotations; those that exist stay."""

    def __init__(self) -> None:
        self._inside: list[type[cst.CSTNode]] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._inside.append(cst.ClassDef)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._inside.pop()
        return updated_node

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._inside.append(cst.FunctionDef)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._inside.pop()
        is_method = self._inside[-1:] == [cst.ClassDef]
        parameters = updated_node.params
        first = parameters.params[: int(is_method)]
        changed = parameters.with_changes(
            params=[*first, *map(_typed, parameters.params[len(first) :])],
            kwonly_params=[*map(_typed, parameters.kwonly_params)],
            posonly_params=[*map(_typed, parameters.posonly_params)],
            star_arg=_typed(parameters.star_arg) if isinstance(parameters.star_arg, cst.Param) else parameters.star_arg,
            star_kwarg=_typed(parameters.star_kwarg) if parameters.star_kwarg else None,
        )
        result = cst.Annotation(cst.Name("None")) if updated_node.name.value == "__init__" else ANY
        return updated_node.with_changes(params=changed, returns=updated_node.returns or result)

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        return updated_node.with_changes(annotation=updated_node.annotation.visit(_Arguments()))


class _Arguments(cst.CSTTransformer):
    """Gives arguments to generic classes without any."""

    def visit_Subscript(self, node: cst.Subscript) -> bool:
        return False

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.Subscript:
        return updated_node.with_changes(slice=[each.visit(self) for each in updated_node.slice])

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        text = BARE.get(updated_node.value)
        return cst.parse_expression(text) if text else updated_node


def _typed(parameter: cst.Param) -> cst.Param:
    return parameter if parameter.annotation is not None else parameter.with_changes(annotation=ANY)


def _is_first(line: cst.BaseStatement | cst.SimpleStatementLine) -> bool:
    if not isinstance(line, cst.SimpleStatementLine):
        return False
    inner = line.body[0]
    is_docstring = isinstance(inner, cst.Expr) and isinstance(inner.value, cst.SimpleString | cst.ConcatenatedString)
    is_future = isinstance(inner, cst.ImportFrom) and isinstance(inner.module, cst.Name) and inner.module.value == "__future__"
    return is_docstring or is_future
