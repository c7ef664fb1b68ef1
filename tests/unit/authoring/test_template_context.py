"""Names in templates beside dates and IDs: variables, connections, assets; and arguments of a DAG for its templates."""

from typing import Any

import pytest

from paceline import DAG, Connection, Variable
from paceline.authoring import context, execution
from paceline.authoring.params import Params
from paceline.authoring.variable import Variables
from paceline.exceptions import NotFoundError, PacelineError, TemplateError
from paceline.operators import PythonOperator
from workers.process.secrets_backend import EnvironmentBackend, MemoryBackend

ENVIRONMENT = {
    "PACELINE_VAR_DEPTH": "3",
    "PACELINE_VAR_SETTINGS": '{"a": {"b": 1}}',
    "PACELINE_VAR_WRONG": "secret text {",
    "PACELINE_CONN_DB": "postgresql://ann:p%40ss@db.example:5432/flights?sslmode=require",
    "PACELINE_CONN_WEB": '{"conn_type": "http", "host": "web", "extra": {"verify": false}}',
}


class Instance:
    task_id, dag_id, run_id, try_number, max_tries, map_index, start_date = "t", "d", "r1", 1, 0, -1, None


def rendered(template: str, *, logical_date: Any = None, **dag: Any) -> Any:
    with DAG("d", params={"n": 1}, **dag) as made:
        task = PythonOperator(task_id="t", python_callable=print, op_args=[template], map_index_template="{{ x }}")
    run = context.DagRun(
        dag_id="d", run_id="r1", run_type="asset_triggered", logical_date=logical_date, data_interval_start=None,
        data_interval_end=None,
    )  # fmt: skip
    ti: Any = Instance()
    values = context.build(dag=made, task=task, ti=ti, dag_run=run, backend=EnvironmentBackend(ENVIRONMENT))
    assert context.KEYS - values.keys() == {*context.DATE_KEYS, "templates_dict"}
    with execution.current(values):
        copy: Any = task.render(values)
    return copy.op_args[0]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ var.value.depth }} {{ var.value.get('none', 'x') }} {{ var.value['depth'] }}", "3 x 3"),
        ("{{ var.json.settings.a.b }} {{ var.json.get('none', {}) }}", "1 {}"),
        ("{{ conn.db.host }}:{{ conn.db.port }}/{{ conn.db.schema }} {{ conn.db.login }} {{ conn.db.password }}",
         "db.example:5432/flights ann p@ss"),
        ("{{ conn.db.conn_type }} {{ conn.db.extra_dejson.sslmode }} {{ conn.db.get_uri() }}",
         "postgres require postgres://ann:p%40ss@db.example:5432/flights?sslmode=require"),
        ("{{ conn.web.extra_dejson.verify }} {{ conn.get('none', 'x') }}", "False x"),
        ("{{ params.n }} {{ params['n'] }} {{ params }} {{ params.m | default(2) }}", "1 1 {'n': 1} 2"),
        ("{{ inlets }} {{ outlets }} {{ map_index_template }} {{ test_mode }} {{ expanded_ti_count }}", "[] [] {{ x }} False None"),
        ("{{ task_instance_key_str }} {{ logical_date is defined }} {{ ds is defined }}", "d__t__r1 False False"),
    ],
)  # fmt: skip
def test_values_of_templates(template: str, text: str) -> None:
    assert rendered(template) == text


@pytest.mark.parametrize(
    ("template", "kind", "words"),
    [
        ("{{ var.value.none }}", NotFoundError, "There is no variable 'none'; create it with `paceline variables set none VALUE`"),
        ("{{ conn.none.host }}", NotFoundError, "There is no connection 'none'; create it with `paceline connections add none"),
        ("{{ var.json.wrong }}", PacelineError, "Variable 'wrong' is not JSON: read it as a string, or set it to JSON."),
        ("{{ ds }}", TemplateError, "'ds' is undefined"),
        ("{{ params.m }}", TemplateError, "has no attribute 'm'"),
    ],
)
def test_a_missing_value_is_an_error(template: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        rendered(template)
    assert words in str(caught.value)
    assert "secret text" not in str(caught.value)


def test_a_dag_shapes_its_environment() -> None:
    from jinja2 import Undefined

    assert rendered("{{ nothing }}|", template_undefined=Undefined) == "|"
    assert (
        rendered("<< params.n >> {{", jinja_environment_kwargs={"variable_start_string": "<<", "variable_end_string": ">>"})
        == "1 {{"
    )


@pytest.mark.parametrize(
    "call", [lambda: Variable.get("x"), lambda: Variable.set("x", 1), lambda: Variable.delete("x"), lambda: Connection.get("x")]
)
def test_variables_and_connections_work_only_inside_a_task(call: Any) -> None:
    with pytest.raises(PacelineError, match=r"works only while a task runs, since loading .* inside the task's function"):
        call()


def test_variable_get_inside_a_task() -> None:
    backend = MemoryBackend(ENVIRONMENT, variables={}, check=lambda: None)
    with execution.current({"var": Variables(backend)}):
        assert (Variable.get("depth"), Variable.get("depth", deserialize_json=True), Variable.get("no", default=None)) == (
            "3",
            3,
            None,
        )
        assert Connection.get("db").password == "p@ss"
        Variable.set("x", 1)
        assert Variable.get("x", deserialize_json=True) == 1


@pytest.mark.parametrize(
    "uri",
    [
        "postgres://ann:p%40s%2Fs@db.example:5432/flights?a=b",
        "my-type://host/",
        "http://:only-password@host/",
        "s3:///?__extra__=%7B%22a%22%3A+1%7D",
        "file:///",
    ],
)
def test_a_connection_is_its_uri(uri: str) -> None:
    found = Connection.from_uri("c", uri)
    assert found.get_uri() == uri
    assert Connection.from_json("c", found.as_dict()).as_dict() == found.as_dict()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no-type-hunter2", "must start with its type"),
        ("x://u:hunter2@host:99999/", "cannot be read: percent-encode its parts"),
        ("x://host/?__extra__=hunter2", "The extra of connection 'c' must be a JSON object"),
        ('{"conn_type": "x", "pasword": "hunter2"}', "has no field 'pasword'; known are conn_type"),
        ('{"host": "hunter2"}', "must be a JSON object with conn_type"),
        ('{"conn_type": "x", "port": "hunter2"}', "The port of connection 'c' must be a whole number from 0 to 65535"),
        ('{"conn_type": "x", "password": 5}', "The field password of connection 'c' must be a string"),
        ('{"hunter2', "is not JSON"),
    ],
)
def test_a_wrong_connection_is_reported_without_its_secrets(text: str, words: str) -> None:
    with pytest.raises(PacelineError) as caught:
        Connection.parse("c", text)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Connection(conn_id="c", conn_type="x", password="hunter2", extra='{"a": "hunter2"}'))


def test_params_are_a_dict() -> None:
    assert {**Params(a=1)} == {"a": 1}
