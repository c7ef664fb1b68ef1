"""Params: the inputs of a run, each with a default and a JSON schema."""

import copy
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from paceline.authoring import json_schema
from paceline.authoring.arguments import Arguments, near
from paceline.authoring.json_schema import MAX_DEPTH, is_too_deep
from paceline.exceptions import ParamError

NOTSET: Any = type("NotSet", (), {"__repr__": lambda _: "NOTSET"})()


class Param:
    """An input of a run: its default, and in `json_schema` the JSON schema of its values (type, enum, minimum, format...).

    A param without a default must be given for each run. None is a default only if the schema allows it. `description`
    is for people.
    """

    def __init__(self, default: Any = NOTSET, description: str | None = None, **json_schema: Any) -> None:
        self.value = default
        self.description = description
        #: Airflow also accepts the whole schema as one argument.
        self.schema: dict[str, Any] = json_schema.pop("schema", json_schema)

    @property
    def has_value(self) -> bool:
        """Whether it has a default."""
        return self.value is not NOTSET

    def __repr__(self) -> str:
        return f"Param({self.value!r}, {self.schema})"


class Params(dict[str, Any]):
    """The params of a try, as `params["x"]` and `params.x`."""

    def __missing__(self, name: str) -> NoReturn:
        # A KeyError, so that `params.x | default(1)` works in a template.
        raise KeyError(f"There is no param {name!r}{near(name, self)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(f"There is no param {name!r}{near(name, self)}")
        return self[name]

    def dump(self) -> dict[str, Any]:
        """The params as a plain dict; the params of a run are checked when it is created."""
        return dict(self)

    validate = dump


ParamsDict = Params


class DagParam:
    """A param as a value in the DAG file, for template fields and arguments of @task functions. A run replaces it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return context["params"][self.name]

    def __str__(self) -> str:
        """The param as a template, so that it can be used in an f-string."""
        return f"{{{{ params[{self.name!r}] }}}}"

    def __repr__(self) -> str:
        return f"DagParam({self.name!r})"


def authored(given: Mapping[str, Any], checks: Arguments) -> dict[str, Param]:
    """The checked `params` of an author: plain values become Params, and each default fits its schema and is JSON."""
    params = {name: value if isinstance(value, Param) else Param(value) for name, value in given.items()}
    for name, param in params.items():
        if not name.strip():
            raise checks.refuse("the name of a param must not be empty.")
        for what, value in (("default", param.value if param.has_value else None), ("schema", param.schema)):
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise checks.refuse(f"the {what} of param {name!r} is not JSON: {error}.") from None
        if complaint := json_schema.schema_complaint(param.schema):
            raise checks.refuse(f"the schema of param {name!r} is not valid: {complaint}.")
        # A None that does not fit the schema means "no default", as in Airflow.
        if param.value is None and json_schema.complaint(None, param.schema):
            param.value = NOTSET
        if param.has_value and (complaint := json_schema.complaint(param.value, param.schema)):
            raise checks.refuse(f"the default of param {name!r} does not fit its schema: {complaint}.")
    return params


def spec(params: Mapping[str, Param]) -> dict[str, Any]:
    """Params as data; one without a default has no "value"."""
    return {
        name: ({"value": _plain(param.value)} if param.has_value else {})
        | {"schema": _plain(param.schema), "description": param.description}
        for name, param in params.items()
    }


def _plain(value: Any) -> Any:
    """A value as JSON returns it: its keys are text, so None in `values_display` is "null"."""
    return json.loads(json.dumps(value)) if isinstance(value, dict | list | tuple) else value


def required(spec: Mapping[str, Any]) -> list[str]:
    """The names of params that have no default."""
    return [name for name, param in spec.items() if "value" not in param]


def check(spec: Mapping[str, Any], conf: Mapping[str, Any], *, dag_id: str, conf_overrides: bool = True) -> None:
    """Check that `conf` has every param of `spec`, and that each fits its schema; ParamError names the first that does not."""
    _check_depth(conf, dag_id=dag_id)
    given = conf if conf_overrides else {}
    for name, param in spec.items():
        if name not in given and "value" not in param:
            hint = f"give it in the conf, as {{{json.dumps(name)}: ...}}"
            fix = hint if conf_overrides else "core.dag_run_conf_overrides_params is off, so the DAG must give it a default"
            raise ParamError(f"DAG {dag_id!r} needs a value for param {name!r}: {fix}.")
        if name in given and (complaint := json_schema.complaint(given[name], param["schema"])):
            raise ParamError(f"Param {name!r} of DAG {dag_id!r} cannot be {_shown(given[name])}: {complaint}.")


def check_names(spec: Mapping[str, Any], conf: Mapping[str, Any], *, dag_id: str) -> None:
    """Check that a DAG with params has each key of `conf`; ParamError suggests a similar one. Without params, the conf is free."""
    for name in conf if spec else ():
        if name not in spec:
            raise ParamError(f"DAG {dag_id!r} has no param {name!r}{near(name, spec)}")


def typed(spec: Mapping[str, Any], name: str, text: str) -> Any:
    """The value of a param that was given as text: JSON if the schema of the param takes that, else the text itself."""
    schema = spec.get(name, {}).get("schema") or {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not schema:
        default = spec.get(name, {}).get("value")
        return text if isinstance(default, str) else value
    return (
        text
        if (json_schema.complaint(value, schema) and not json_schema.complaint(text, schema)) or schema.get("type") == "string"
        else value
    )


def fault(spec: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The fault in the values that a person gave for params, as a sentence that names the param; None if all fit."""
    if is_too_deep(given):
        return f"The values of the params are nested more than {MAX_DEPTH} levels deep."
    for name in given:
        if name not in spec:
            known = f"the params are {', '.join(spec)}" if spec else "the request has no params"
            return f"There is no param {name!r}: {known}."
    for name, param in spec.items():
        if name not in given and "value" not in param:
            return f"Param {name!r} needs a value."
        if name in given and (complaint := json_schema.complaint(given[name], param["schema"])):
            return f"Param {name!r} cannot be {_shown(given[name])}: {complaint}."
    return None


def of_try(dag: Any, task: Any, conf: Mapping[str, Any], *, conf_overrides: bool = True) -> Params:
    """The params of one try: those of the DAG, overridden by those of the task, overridden by the conf of the run."""
    # The params of the DAG were checked when the run was created.
    own = {name: param for name, param in spec(task.params).items() if param["schema"] or "value" not in param}
    check(own, conf, dag_id=dag.dag_id, conf_overrides=conf_overrides)
    return of_run(dag.params | task.params, conf, conf_overrides=conf_overrides)


def of_run(params: Mapping[str, Param], conf: Mapping[str, Any], *, conf_overrides: bool) -> Params:
    """The values of params, overridden by the conf of the run. Copies: user code may change them, and the next try gets its own."""
    values = {name: param.value for name, param in params.items() if param.has_value}
    return Params(copy.deepcopy(values | dict(conf if conf_overrides else {})))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def check_size(conf: Mapping[str, Any], most_bytes: int | None, *, dag_id: str) -> None:
    """ParamError if the conf of a run is nested too deeply or has more than `most_bytes` of JSON (None: no limit)."""
    _check_depth(conf, dag_id=dag_id)  # first: a conf that is too deep cannot be written as JSON
    try:
        text = json.dumps(conf, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        raise ParamError(f"The conf for DAG {dag_id!r} has a number that JSON lacks, such as NaN or Infinity.") from None
    size = len(text.encode(errors="surrogatepass"))
    if most_bytes is not None and size > most_bytes:
        raise ParamError(
            f"The conf for DAG {dag_id!r} has {size:,} bytes of JSON, and core.max_conf_bytes allows {most_bytes:,}:"
            " write the data to a file and pass its path in the conf."
        )


def _check_depth(conf: object, *, dag_id: str) -> None:
    if is_too_deep(conf):
        raise ParamError(f"The conf for DAG {dag_id!r} is nested more than {MAX_DEPTH} levels deep; make it flatter.")
