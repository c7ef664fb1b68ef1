"""Params: defaults and schemas are checked when the file is read, values when a run is created, and tasks get them merged."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import DAG, Param, dag, task
from paceline.authoring import json_schema, params
from paceline.exceptions import DagError, ParamError
from paceline.operators import BashOperator, EmptyOperator
from scheduler.serialized.authored import from_dag
from scheduler.settings import Core, Scheduler


def spec_of(**given: Any) -> dict[str, Any]:
    return DAG("d", params=given).params_spec


def test_plain_values_and_params_become_data() -> None:
    assert spec_of(a=1, b=Param("x", "which", type="string", enum=["x", "y"]), c=Param(type="integer")) == {
        "a": {"value": 1, "schema": {}, "description": None},
        "b": {"value": "x", "schema": {"type": "string", "enum": ["x", "y"]}, "description": "which"},
        "c": {"schema": {"type": "integer"}, "description": None},
    }


def test_none_that_does_not_fit_is_no_default() -> None:
    assert params.required(spec_of(a=Param(None, type="string"), b=Param(None, type=["string", "null"]), c=None)) == ["a"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": Param("x", type="integer")}, "the default of param 'n' does not fit its schema: 'x' is not of type 'integer'"),
        ({"n": Param({"a": ["b"]}, properties={"a": {"items": {"type": "integer"}}})}, r"schema: \['a'\]\[0\]: 'b' is not of type"),
        ({"n": Param(1, type="whole")}, "the schema of param 'n' is not valid: type: 'whole' is not valid"),
        ({"n": Param(1, schema=[])}, "the schema of param 'n' is not valid: it is a list and must be a dict"),
        ({"n": Param("2026-13-01", type="string", format="date")}, "'2026-13-01' is not a 'date'"),
        ({"n": Param("2026-01-01T00:00:00", type="string", format="date-time")}, "is not a 'date-time'"),
        ({"n": datetime(2026, 1, 1, tzinfo=UTC)}, "the default of param 'n' is not JSON"),
        ({"n": float("nan")}, "the default of param 'n' is not JSON"),
        ({"n": Param(1, **{"$ref": "http://127.0.0.1:9/none.json"})}, "it refers to 'http://127.0.0.1:9/none.json'"),
        ({"n": Param(1, **{"$ref": "#"})}, "'#' leads to itself"),
        ({"n": Param(1, **{"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})}, "leads to itself"),
        ({"n": Param("b", pattern="(?=a)b")}, "pattern: .* is not a 'regex' .*look-around"),
        ({"n": Param("b", pattern="((a{100}){100}){1000}")}, "is not a 'regex' .*when compiled"),
        ({" ": 1}, "the name of a param must not be empty"),
    ],
)
def test_a_wrong_param_is_refused_when_the_file_is_read(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DagError, match=f"DAG 'd': .*{words}"):
        DAG("d", params=given)
    with pytest.raises(DagError, match=f"Task 't' of DAG 'd': .*{words}"), DAG("d"):
        EmptyOperator(task_id="t", params=given)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 5000 + "!"),
        ({"items": {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}}, [{"a" * 5000 + "!": 1}]),
        ({"propertyNames": {"pattern": "^(a|aa)+$"}}, {"a" * 5000 + "!": 1}),
        ({"$defs": {"t": {"pattern": "(.*)*x"}}, "additionalProperties": {"$ref": "#/$defs/t"}}, {"k": "a" * 5000}),
        ({"uniqueItems": True, "items": {"type": "integer"}}, [*range(20_000), "x"]),
    ],
)
def test_a_value_is_matched_in_linear_time(schema: dict[str, Any], value: Any) -> None:
    before = time.process_time()

    assert json_schema.complaint(value, schema) is not None

    assert time.process_time() - before < 1


def test_a_schema_whose_references_double_is_refused() -> None:
    doubled: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    complaint = json_schema.schema_complaint({"$defs": doubled | {"d40": {}}, "$ref": "#/$defs/d0"})

    assert complaint is not None and "10,000 objects and 100 patterns are allowed" in complaint


@pytest.mark.parametrize("value", ["2026-01-31", "1999-12-31"])
def test_formats_are_checked(value: str) -> None:
    assert spec_of(day=Param(value, type="string", format="date"))["day"]["value"] == value


def test_a_key_of_a_schema_that_is_no_text_becomes_text() -> None:
    """Airflow 3.3.2 accepts None as a key of values_display, and its form looks it up as "null"."""
    with DAG("d", params={"p": Param("a", enum=["a", None], values_display={"a": "A", None: "nothing"})}) as dag:
        EmptyOperator(task_id="t")

    stored = json.loads(from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).to_json())

    assert stored["params"]["p"]["schema"]["values_display"] == {"a": "A", "null": "nothing"}


def test_a_scheduled_dag_needs_a_default_for_each_param() -> None:
    with pytest.raises(DagError, match=r"param 'n' has no default that fits its schema.*write a default, or schedule=None"):
        with DAG("d", schedule="@daily", params={"n": Param(type="integer")}):
            pass
    with DAG("d", params={"n": Param(type="integer")}) as unscheduled:
        pass
    assert params.required(unscheduled.params_spec) == ["n"]


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({}, "DAG 'd' needs a value for param 'n': give it in the conf, as {\"n\": ...}."),
        ({"n": "x"}, "Param 'n' of DAG 'd' cannot be \"x\": 'x' is not of type 'integer'."),
        ({"n": 0}, "Param 'n' of DAG 'd' cannot be 0: 0 is less than the minimum of 1."),
        ({"n": 1, "s": 2}, "Param 's' of DAG 'd' cannot be 2: 2 is not of type 'string'."),
    ],
)
def test_a_conf_that_does_not_fit_names_the_param(conf: dict[str, Any], words: str) -> None:
    with pytest.raises(ParamError) as caught:
        params.check(spec_of(n=Param(type="integer", minimum=1), s=Param("", type="string")), conf, dag_id="d")
    assert (str(caught.value), caught.value.exit_code) == (words, 2)


def test_a_conf_that_fits_or_has_other_keys_is_taken() -> None:
    spec, conf = spec_of(n=Param(type="integer")), {"n": 3, "other": {}}

    params.check(spec, conf, dag_id="d")

    assert conf == {"n": 3, "other": {}}


def test_without_overriding_the_conf_is_not_looked_at() -> None:
    params.check(spec_of(n=Param(1, type="integer")), {"n": "x"}, dag_id="d", conf_overrides=False)
    with pytest.raises(ParamError, match=r"core.dag_run_conf_overrides_params is off"):
        params.check(spec_of(n=Param(type="integer")), {"n": 1}, dag_id="d", conf_overrides=False)


def test_a_try_gets_the_dags_values_then_the_tasks_then_the_confs() -> None:
    with DAG("d", params={"a": 1, "b": 1, "c": 1}) as made:
        one = EmptyOperator(task_id="t", params={"b": 2, "c": Param(2, type="integer")})

    merged = params.of_try(made, one, {"c": 3, "extra": 4})

    assert merged == {"a": 1, "b": 2, "c": 3, "extra": 4}
    assert (merged.a, merged["b"]) == (1, 2)
    assert params.of_try(made, one, {"c": 3}, conf_overrides=False) == {"a": 1, "b": 2, "c": 2}
    with pytest.raises(ParamError, match="Param 'c' of DAG 'd' cannot be \"x\""):
        params.of_try(made, one, {"c": "x"})


def test_a_missing_param_names_the_nearest_match() -> None:
    merged = params.Params(depth=1)

    with pytest.raises(KeyError, match=r"There is no param 'dept'; did you mean 'depth'\?"):
        merged["dept"]
    with pytest.raises(AttributeError, match=r"There is no param 'dept'; did you mean 'depth'\?"):
        merged.dept  # noqa: B018


def test_arguments_of_a_dag_function_are_params() -> None:
    @dag(params={"from_dag": 1})
    def flights(day: Any = Param("mon", type="string"), depth: int = 2) -> None:  # noqa: B008
        @task
        def show(day: str, both: list[Any]) -> None: ...

        show(day, both=[depth, f"a {day}"])
        BashOperator(task_id="shell", bash_command=day)

    made = flights(depth=5)

    assert {name: one["value"] for name, one in made.params_spec.items()} == {"from_dag": 1, "day": "mon", "depth": 5}
    assert made.params_spec["day"]["schema"] == {"type": "string"}
    context = {"params": params.of_try(made, made.task_dict["shell"], {"day": "tue"})}
    assert made.task_dict["shell"].render(context).bash_command == "tue"  # type: ignore[attr-defined]
    rendered: Any = made.task_dict["show"].render(context)
    assert (*rendered.op_args, rendered.op_kwargs) == ("tue", {"both": [5, "a tue"]})


def test_a_param_outside_template_fields_is_refused() -> None:
    dag = DAG("d", params={"n": 1})
    doc: Any = dag.param("n")

    with pytest.raises(DagError, match="doc cannot take a param; template fields can"):
        EmptyOperator(task_id="t", dag=dag, doc=doc)
    with pytest.raises(DagError, match="DAG 'd': there is no param 'm'; known are n"):
        dag.param("m")
