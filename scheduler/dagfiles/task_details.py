"""What the tasks of a DAG execute: their arguments as text, and a digest of the code that they reach in their folder.

`paceline plan` compares these of two folders. Equal code has an equal digest in any process, wherever it stands in its file.
"""

import functools
import hashlib
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from pathlib import Path, PurePath
from typing import Any

from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.dag import DAG
from paceline.authoring.operator import MappedOperator
from scheduler.serialized.difference import APPLIED

#: Attributes that say where a task stands, and not what it does.
PLACE = frozenset({
    "at", "dag", "task_group", "task_id", "label", "upstream_task_ids", "downstream_task_ids", "setup_blocks", "task_display_name",
    "event_callbacks", "execute_hooks",
})  # fmt: skip
LONGEST_TEXT = 200
#: How deep values and code are followed.
DEEPEST = 30
PLAIN = (str, bytes, bool, int, float, complex, type(None), date, time, timedelta, PurePath)


def details(dag: DAG, folder: Path) -> dict[str, dict[str, Any]]:
    """By task ID: its `arguments` as texts, without those that its DAG is stored with, and the digest of its `code`."""
    code = _Code(folder)
    return {task_id: _of_task(task, code) for task_id, task in dag.task_dict.items()}


def _of_task(task: AbstractOperator, code: "_Code") -> dict[str, Any]:
    values = dict(task.given) if isinstance(task, MappedOperator) else vars(task)
    kind = task.operator_class
    own = {name: value for name, value in values.items() if name not in PLACE and not name.startswith("_")}
    callbacks = {name: getattr(task, name, None) for name in ("event_callbacks", "execute_hooks")}
    pieces = [code.of(kind), *(code.of(value) for _, value in sorted({**own, **callbacks}.items()))]
    shown = ((name, code.text(value)) for name, value in sorted(own.items()) if value is not None and name not in APPLIED)
    return {
        "arguments": {name: text for name, text in shown if text is not None},
        "code": hashlib.sha256(json.dumps(pieces).encode()).hexdigest(),
    }


class _Code:
    """Values of one folder as texts, and the digests of its functions, classes and modules. Code of a library has none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start = f"{folder}/"
        #: By the ID of a function, class or module, which lives as long as its module. Empty while it is being computed.
        self._known: dict[int, str] = {}

    def text(self, value: object, depth: int = 0) -> str | None:
        """The value as a text that is equal in any process and folder; None for code, and for what no text can show."""
        if isinstance(value, PLAIN):
            text = repr(value).replace(str(self._folder), ".")
        elif depth > DEEPEST:
            return None
        elif isinstance(value, Mapping):
            pairs = [(repr(str(name))[1:-1], self.text(each, depth + 1)) for name, each in value.items()]
            text = f"{{{', '.join(f'{name}: {each}' for name, each in pairs if each is not None)}}}"
        elif isinstance(value, list | tuple | set | frozenset):
            texts = [each for each in (self.text(item, depth + 1) for item in value) if each is not None]
            text = f"[{', '.join(sorted(texts) if isinstance(value, set | frozenset) else texts)}]"
        else:
            return None
        if len(text) > LONGEST_TEXT:
            return f"{text[:LONGEST_TEXT]}... ({hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]})"
        return text

    def of(self, value: object, depth: int = 0) -> str:
        """The digest of the code that a value has; empty without any."""
        if depth > DEEPEST:
            return ""
        if isinstance(value, Mapping):
            value = [each for _, each in sorted(value.items(), key=lambda item: str(item[0]))]
        if isinstance(value, functools.partial):
            given = (value.args, value.keywords)
            return _digest([self.of(value.func, depth + 1), *(self.text(each) or "" for each in given), self.of(given, depth + 1)])
        if isinstance(value, list | tuple):
            return _digest([self.of(each, depth + 1) for each in value])
        value = _function_of(value)
        if not isinstance(value, types.FunctionType | types.ModuleType | type):
            return ""
        if id(value) not in self._known:
            self._known[id(value)] = ""
            self._known[id(value)] = self._computed(value, depth)
        return self._known[id(value)]

    def _computed(self, value: types.FunctionType | types.ModuleType | type, depth: int) -> str:
        if isinstance(value, types.FunctionType):
            function = inspect.unwrap(value)
            if not isinstance(function, types.FunctionType) or not function.__code__.co_filename.startswith(self._start):
                return ""
            cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
            given = [function.__defaults__, function.__kwdefaults__, *cells]
            return _digest([
                *_of_code(function.__code__),
                *(self.text(each) or self.of(each, depth + 1) for each in given),
                *self._names(function.__code__, function.__globals__, depth),
            ])  # fmt: skip
        if isinstance(value, types.ModuleType):
            file = getattr(value, "__file__", None)
            return self._file(Path(file)) if isinstance(file, str) and file.startswith(self._start) else ""
        module = inspect.getmodule(value)
        if not str(getattr(module, "__file__", "")).startswith(self._start):
            return ""
        members = sorted(
            (name, each) for name, each in vars(value).items() if name not in {"__dict__", "__weakref__", "__module__"}
        )
        bases = (self.of(base, depth + 1) for base in value.__bases__)
        return _digest([*bases, *(f"{name}={self.text(each) or self.of(each, depth + 1)}" for name, each in members)])

    def _names(self, code: types.CodeType, names: Mapping[str, Any], depth: int) -> Iterator[str]:
        """What the names in some code stand for: values and code of its module, and modules that it imports while it runs."""
        for name in sorted(_used(code)):
            if name in names:
                yield f"{name}={self.text(names[name]) or self.of(names[name], depth + 1)}"
            else:
                place = self._folder.joinpath(*name.split("."))
                file = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
                if file is not None:
                    yield f"{name}={self._file(file)}"

    def _file(self, file: Path) -> str:
        try:
            return _digest(_of_code(compile(file.read_bytes(), "", "exec", dont_inherit=True)))
        except (OSError, SyntaxError, ValueError):
            return ""


def _of_code(code: types.CodeType) -> Iterator[str]:
    """The parts of compiled code that do not depend on its place in the file."""
    yield from (code.co_code.hex(), " ".join(code.co_names), " ".join(code.co_varnames), str(code.co_flags))
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _of_code(value)
        else:
            yield repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)


def _used(code: types.CodeType) -> set[str]:
    return {*code.co_names}.union(*(_used(value) for value in code.co_consts if isinstance(value, types.CodeType)))


def _function_of(value: object) -> object:
    """The function that a method, a member of a class or a decorated function has; any other value as it is."""
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    if isinstance(value, types.FunctionType | types.ModuleType | type):
        return value
    attributes = getattr(value, "__dict__", {})
    return attributes.get("__wrapped__") or attributes.get("function")


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _digest(parts: Iterator[str] | list[str]) -> str:
    texts = list(parts)
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32] if any(texts) else ""
