"""Rewrites arguments and template variables that older versions of Airflow had."""

import re
from collections.abc import Sequence

import libcst as cst
from libcst.metadata import PositionProvider

from paceline.authoring.arguments import NO_EFFECT, RENAMED
from paceline.authoring.task_arguments import RULES
from scheduler.dagfiles.migrate.imports import Bound, Note

#: The replacements of template variables of Airflow 2 that no longer exist.
VARIABLES = {
    "execution_date": "logical_date",
    "next_execution_date": "data_interval_end",
    "prev_execution_date": "data_interval_start",
    "prev_execution_date_success": "prev_data_interval_start_success",
    "next_ds": "data_interval_end | ds",
    "next_ds_nodash": "data_interval_end | ds_nodash",
    "prev_ds": "data_interval_start | ds",
    "prev_ds_nodash": "data_interval_start | ds_nodash",
    "tomorrow_ds": "macros.ds_add(ds, 1)",
    "tomorrow_ds_nodash": "macros.ds_add(ds, 1) | replace('-', '')",
    "yesterday_ds": "macros.ds_add(ds, -1)",
    "yesterday_ds_nodash": "macros.ds_add(ds, -1) | replace('-', '')",
}
#: Arguments that mean nothing here, by the class that takes them, and why.
MEANINGLESS = {"Asset": {"access_control": "Paceline has no teams"}, "Dataset": {"access_control": "Paceline has no teams"}}
#: What the rewrite of a file of Airflow 2 changes.
SHIFTED = (
    "In Airflow 2, the logical date of a run is the start of its data interval; after this rewrite it is the time of the run, and"
    " {{ ds }} is one interval later. Set scheduler.create_cron_data_intervals and create_delta_data_intervals to true to keep"
    " Airflow 2's dates, or write CronDataIntervalTimetable."
)
#: The class and method of calls that need the database.
READS = {("Variable", "get"), ("Connection", "get"), ("BaseHook", "get_connection"), ("BaseHook", "get_hook")}
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_VARIABLE = re.compile(rf"(?<![\w.])({'|'.join(sorted(VARIABLES, key=len, reverse=True))})(?!\w)")
_LOGICAL_DATE = re.compile(r"(?<![\w.])execution_date(?!\w)")


class Arguments(cst.CSTTransformer):
    """Renames arguments of Airflow 2, removes those without effect, and notes variables that do not exist any more."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, names: Bound, *, speaks_airflow_2: bool = False) -> None:
        super().__init__()
        self._speaks_airflow_2 = speaks_airflow_2
        self.changes: list[Note] = []
        self.unsupported: list[Note] = []
        self._bound = names
        #: The number of functions around this node that do not run while the file is loaded.
        self._later = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        # The functions of @dag and @task_group run while the file is loaded.
        self._later += not any(self._bound.role(_called(each.decorator)) in {"dag", "task_group"} for each in node.decorators)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        node = original_node
        self._later -= not any(self._bound.role(_called(each.decorator)) in {"dag", "task_group"} for each in node.decorators)
        return updated_node

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._later += 1

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.Lambda:
        self._later -= 1
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        role = self._bound.role(original_node.func)
        if not self._later and isinstance(func := original_node.func, cst.Attribute):
            kind = self._bound.role(func.value)
            if (kind, func.attr.value) in READS:
                self.unsupported.append(Note(self._line(original_node), _of_read(kind, original_node)))
        removed: dict[str, str] = dict(MEANINGLESS.get(role, {}))
        if role in {"DAG", "dag", "task"} or role.endswith(("Operator", "Sensor")):
            removed = dict.fromkeys(NO_EFFECT, "it has no effect")
        elif not removed:
            return updated_node
        given = {arg.keyword.value for arg in original_node.args if arg.keyword is not None}
        for number, arg in reversed(list(enumerate(original_node.args))):
            name = "" if arg.keyword is None else arg.keyword.value
            line = self._line(arg)
            if (
                self._speaks_airflow_2
                and role in {"DAG", "dag"}
                and name in {"schedule", "schedule_interval"}
                and _is_timed(arg.value)
            ):
                self.unsupported.append(Note(line, SHIFTED))
            if _is_own_weight_rule(arg) and role not in MEANINGLESS:
                text = "weight_rule= of a class of your own is removed: schedulers never run user code; set priority_weight."
                self.unsupported.append(Note(line, text))
                updated_node = _without(updated_node, number)
            elif name in RENAMED and RENAMED[name] not in given and role not in MEANINGLESS:
                self.changes.append(Note(line, f"{name}= -> {RENAMED[name]}="))
                args = list(updated_node.args)
                args[number] = args[number].with_changes(keyword=cst.Name(RENAMED[name]))
                updated_node = updated_node.with_changes(args=args)
            elif name in removed:
                self.changes.append(Note(line, f"{name}= is removed: {removed[name]}"))
                updated_node = _without(updated_node, number)
        return updated_node

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        line = self._line(original_node)
        value = _TEMPLATE.sub(lambda template: _LOGICAL_DATE.sub("logical_date", template[0]), updated_node.value)
        if value != updated_node.value:
            self.changes.append(Note(line, "execution_date -> logical_date in a template"))
        for template in _TEMPLATE.findall(value):
            for name in dict.fromkeys(_VARIABLE.findall(template)):
                self.unsupported.append(
                    Note(line, f"The template variable {name} does not exist any more; write {VARIABLES[name]}.")
                )
        return updated_node.with_changes(value=value)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        """Note `context["execution_date"]`."""
        for element in node.slice:
            index = element.slice.value if isinstance(element.slice, cst.Index) else None
            name = index.evaluated_value if isinstance(index, cst.SimpleString) else None
            if isinstance(name, str) and name in VARIABLES and isinstance(node.value, cst.Name):
                self.unsupported.append(
                    Note(self._line(node), f"The context has no {name} any more; use {VARIABLES[name].split(' |')[0]}.")
                )

    def _line(self, node: cst.CSTNode) -> int:
        line: int = self.get_metadata(PositionProvider, node).start.line
        return line


def _called(decorator: cst.BaseExpression) -> cst.BaseExpression:
    return decorator.func if isinstance(decorator, cst.Call) else decorator


def _of_read(role: str, call: cst.Call) -> str:
    """What to do about a variable or connection that is read while the file is loaded."""
    first = call.args[0].value if call.args else None
    key = first.evaluated_value if isinstance(first, cst.SimpleString) else None
    if role != "Variable":
        return "A file that is loaded reads no connections: read it in the function of a task, or as {{ conn.name.host }}."
    name = f"PACELINE_VAR_{key.upper()}" if isinstance(key, str) else "PACELINE_VAR_<KEY>"
    has_default = any(arg.keyword is None or arg.keyword.value in {"default", "default_var"} for arg in call.args[1:])
    default = " Without it, the default counts." if has_default else ""
    return f"A file that is loaded reads no stored variables: set {name} for schedulers and workers, or read it in a task.{default}"


def _is_timed(value: cst.BaseExpression) -> bool:
    """Whether this may be a schedule by cron or timedelta."""
    if isinstance(value, cst.SimpleString):
        return value.evaluated_value not in {"@once", "@continuous"}
    return not (isinstance(value, cst.List | cst.Tuple) or (isinstance(value, cst.Name) and value.value == "None"))


def _is_own_weight_rule(arg: cst.Arg) -> bool:
    """Whether this is weight_rule= with something else than the name of a rule or a member of WeightRule."""
    if arg.keyword is None or arg.keyword.value != "weight_rule":
        return False
    if isinstance(arg.value, cst.SimpleString):
        return arg.value.evaluated_value not in RULES
    return isinstance(arg.value, cst.Call)


def _without(call: cst.Call, number: int) -> cst.Call:
    """The call without one argument. Comments on separate lines stay."""
    removed = call.args[number]
    args = [*call.args[:number], *call.args[number + 1 :]]
    after = removed.comma.whitespace_after if isinstance(removed.comma, cst.Comma) else removed.whitespace_after_arg
    if number == 0:
        return call.with_changes(args=args, whitespace_before_args=_merged(call.whitespace_before_args, after))
    previous = args[number - 1]
    if isinstance(previous.comma, cst.Comma):
        last = number == len(args) and not isinstance(removed.comma, cst.Comma)
        comma: cst.Comma | cst.MaybeSentinel = previous.comma.with_changes(
            whitespace_after=_merged(previous.comma.whitespace_after, after)
        )
        if last and not isinstance(after, cst.ParenthesizedWhitespace):
            comma = cst.MaybeSentinel.DEFAULT
        args[number - 1] = previous.with_changes(comma=comma)
    return call.with_changes(args=args)


def _merged(
    before: cst.BaseParenthesizableWhitespace, after: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The whitespace before a removed argument, with the place to which the whitespace after it leads."""
    if not isinstance(before, cst.ParenthesizedWhitespace) or not isinstance(after, cst.ParenthesizedWhitespace):
        return before
    lines: Sequence[cst.EmptyLine] = [*before.empty_lines, *after.empty_lines]
    return after.with_changes(first_line=before.first_line, empty_lines=lines)
