"""Templates of task fields: the names of the context, variables, connections, and arguments of a DAG for its templates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import DAG, Connection, Variable
from paceline.authoring import context, execution, running
from paceline.authoring.operator import Operator
from paceline.authoring.params import Params
from paceline.authoring.variable import Variables
from paceline.exceptions import NotFoundError, PacelineError, TemplateError, XComError
from paceline.operators import BashOperator, PythonOperator
from scheduler.testing.in_memory.backends import MemoryBackend
from workers.process.secrets_backend import EnvironmentBackend

DATE = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class Instance(SimpleNamespace):
    """The `ti` of a worker, with its XComs in a dict."""

    def xcom_pull(self, task_ids: str, key: str = "return_value", default: Any = None, **_: Any) -> Any:
        return self.xcoms.get((task_ids, key), default)


def context_of(task: Operator, xcoms: dict[tuple[str, str], Any] | None = None) -> context.Context:
    assert task.dag is not None
    run = context.DagRun(
        dag_id=task.dag.dag_id,
        run_id="r1",
        run_type="manual",
        logical_date=DATE,
        data_interval_start=DATE,
        data_interval_end=DATE + timedelta(days=1),
        conf={"table": "t"},
    )
    ti: Any = Instance(
        task_id=task.task_id, dag_id=run.dag_id, run_id="r1", try_number=2, map_index=-1, start_date=DATE, xcoms=xcoms or {}
    )
    ti._settings = SimpleNamespace(database_url="postgresql://the-password")
    return context.build(dag=task.dag, task=task, ti=ti, dag_run=run)


def rendered(value: Any, *, xcoms: dict[tuple[str, str], Any] | None = None, **dag: Any) -> Any:
    with DAG("d", **dag):
        task = PythonOperator(task_id="t", python_callable=print, op_args=[value])
    return task.render(context_of(task, xcoms)).op_args[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ ds }} {{ ds_nodash }}", "2026-03-04 20260304"),
        ("{{ ts }}", "2026-03-04T05:06:07+00:00"),
        ("{{ ts_nodash }} {{ ts_nodash_with_tz }}", "20260304T050607 20260304T050607+0000"),
        ("{{ logical_date.year }} {{ data_interval_end | ds }}", "2026 2026-03-05"),
        ("{{ data_interval_start | ts_nodash }}", "20260304T050607"),
        ("{{ run_id }} {{ dag.dag_id }} {{ task.task_id }}", "r1 d t"),
        ("{{ ti.try_number }} {{ task_instance.map_index }} {{ map_index }}", "2 -1 -1"),
        ("{{ dag_run.conf['table'] }} {{ conf.table }}", "t t"),
        ("{{ macros.ds_add(ds, 5) }} {{ macros.ds_add(ds, -4) }}", "2026-03-09 2026-02-28"),
        ("{{ macros.ds_format(ds, '%Y-%m-%d', '%d.%m.%y') }}", "04.03.26"),
        ("{{ macros.timedelta(days=2).days }} {{ params }}", "2 {'table': 't'}"),
        ("{{ task_instance_key_str }}", "d__t__20260304"),
        ("plain\n", "plain"),
        ("{# nothing #}x", "x"),
    ],
)
def test_the_variables_of_airflow(template: str, text: str) -> None:
    assert rendered(template) == text


def test_templates_are_found_however_deep_and_other_values_stay() -> None:
    marker = object()

    value = rendered({"a": ["{{ ds }}", ("{{ run_id }}", 3)], "b": {"c": {"{{ ds }}"}}, "d": marker})

    assert value == {"a": ["2026-03-04", ("r1", 3)], "b": {"c": {"2026-03-04"}}, "d": marker}


def test_rendering_leaves_the_task_as_it_was() -> None:
    with DAG("d"):
        task = BashOperator(task_id="t", bash_command="echo {{ ds }}")

    assert task.render(context_of(task)).bash_command == "echo 2026-03-04"  # type: ignore[attr-defined]
    assert task.bash_command == "echo {{ ds }}"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{{ run_di }}", r"Task 't', field op_args\[0\]: 'run_di' is undefined; did you mean 'run_id'\?"),
        ({"k": ["{{ nobody }}"]}, r"field op_args\[0\]\['k'\]\[0\]: 'nobody' is undefined\."),
        ("{{ dag_run.nothing }}", "has no attribute 'nothing'"),
        ("{{ conf.nothing }}", "has no attribute 'nothing'"),
        ("{{ ds", "TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_template_that_cannot_be_rendered_names_its_field(value: Any, words: str, native: bool) -> None:
    with pytest.raises(TemplateError, match=words):
        rendered(value, render_template_as_native_obj=native)


def test_a_run_without_a_date_has_no_ds() -> None:
    assert context.dates(None) == {}


def test_native_objects() -> None:
    assert rendered("{{ [1, 2] }}", render_template_as_native_obj=True) == [1, 2]
    assert rendered("{{ logical_date }}", render_template_as_native_obj=True) == DATE
    assert rendered("{{ [1, 2] }}") == "[1, 2]"


def test_macros_and_filters_of_the_dag() -> None:
    dag = {"user_defined_macros": {"twice": lambda n: 2 * n}, "user_defined_filters": {"shout": str.upper}}

    assert rendered("{{ twice(4) }} {{ 'a' | shout }}", **dag) == "8 A"


def test_a_command_file_is_a_template_beside_the_dag_file_or_on_the_search_path(tmp_path: Path) -> None:
    (tmp_path / "beside.sh").write_text("echo {{ ds }}\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "found.bash").write_text("{% include 'beside.sh' %}!")
    source = "from paceline import DAG\nwith DAG('d', template_searchpath=path) as dag: pass"
    names: dict[str, Any] = {"path": str(tmp_path / "sub")}
    exec(compile(source, str(tmp_path / "dag.py"), "exec"), names)

    def command(text: str) -> str:
        task = BashOperator(task_id=f"t{len(names['dag'].tasks)}", bash_command=text, dag=names["dag"])
        return task.render(context_of(task)).bash_command  # type: ignore[attr-defined, no-any-return]

    assert command("beside.sh") == "echo 2026-03-04"
    assert command("found.bash") == "echo 2026-03-04!"
    assert command("bash beside.sh ") == "bash beside.sh "
    with pytest.raises(TemplateError, match=r"field bash_command: the template file 'none.sh' is in none of .*sub"):
        command("none.sh")


def test_results_become_their_values() -> None:
    with DAG("d"):
        first = PythonOperator(task_id="a", python_callable=print)
        task = PythonOperator(
            task_id="t",
            python_callable=print,
            op_args=[first.output, [first.output["rows"][1]], first.output["own"], f"{first.output['n']}"],
        )
    xcoms = {("a", "return_value"): {"rows": [7, 8], "n": 5}, ("a", "own"): "pushed"}

    args = task.render(context_of(task, xcoms)).op_args  # type: ignore[attr-defined]

    assert args == [{"rows": [7, 8], "n": 5}, [8], "pushed", "5"]


def test_a_missing_result_is_none_and_a_missing_part_an_error() -> None:
    with DAG("d"):
        result = PythonOperator(task_id="a", python_callable=print).output
        task = PythonOperator(task_id="t", python_callable=print)
    empty, full = context_of(task), context_of(task, {("a", "return_value"): {"x": [1]}})

    assert result.resolve(empty) is None
    with pytest.raises(XComError, match="'a' has pushed no XCom"):
        result["x"].resolve(empty)
    with pytest.raises(XComError, match=r"result of 'a'\['x'\]\[3\] does not exist: 3 is not in a list"):
        result["x"][3].resolve(full)


def test_the_current_context_is_that_of_the_running_task() -> None:
    with pytest.raises(Exception, match="works only while a task runs"):
        running.get_current_context()
    with execution.current({"run_id": "r"}):
        assert running.get_current_context()["run_id"] == "r"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "template",
    [
        "{{ ti._settings.database_url }}",
        "{{ ti.__class__ }}",
        "{{ ti.xcom_pull.__globals__ }}",
        "{{ ti.xcom_pull.__func__.__globals__['os'].environ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ dag['__class__'] }}",
        "{{ ti | attr('_settings') }}",
        "{{ '{0._settings}'.format(ti) }}",
        "{{ macros.__dict__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for x in [].__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    ],
)
def test_a_template_reaches_nothing_that_it_is_not_given(template: str, native: bool) -> None:
    with pytest.raises(TemplateError, match=r"unsafe|is undefined"):
        rendered(template, render_template_as_native_obj=native)


@pytest.mark.parametrize(("of_dag", "of_task", "expected"), [(False, True, [1]), (True, False, "[1]"), (True, None, [1])])
def test_a_task_decides_whether_its_templates_give_objects(of_dag: bool, of_task: bool | None, expected: Any) -> None:
    with DAG("d", schedule=None, render_template_as_native_obj=of_dag):
        task = PythonOperator(
            task_id="t", python_callable=lambda a: a, op_args=["{{ [1] }}"], render_template_as_native_obj=of_task
        )

    rendered: Any = task.render({})
    assert rendered.op_args == [expected]


ENVIRONMENT = {
    "PACELINE_VAR_DEPTH": "3",
    "PACELINE_VAR_SETTINGS": '{"a": {"b": 1}}',
    "PACELINE_VAR_WRONG": "secret text {",
    "PACELINE_CONN_DB": "postgresql://ann:p%40ss@db.example:5432/flights?sslmode=require",
    "PACELINE_CONN_WEB": '{"conn_type": "http", "host": "web", "extra": {"verify": false}}',
}


class FirstTry:
    task_id, dag_id, run_id, try_number, max_tries, map_index, start_date = "t", "d", "r1", 1, 0, -1, None


def of_first_try(template: str, *, logical_date: Any = None, **dag: Any) -> Any:
    with DAG("d", params={"n": 1}, **dag) as made:
        task = PythonOperator(task_id="t", python_callable=print, op_args=[template], map_index_template="{{ x }}")
    run = context.DagRun(
        dag_id="d", run_id="r1", run_type="asset_triggered", logical_date=logical_date, data_interval_start=None,
        data_interval_end=None,
    )  # fmt: skip
    ti: Any = FirstTry()
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
    assert of_first_try(template) == text


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
        of_first_try(template)
    assert words in str(caught.value)
    assert "secret text" not in str(caught.value)


def test_a_dag_shapes_its_environment() -> None:
    from jinja2 import Undefined

    assert of_first_try("{{ nothing }}|", template_undefined=Undefined) == "|"
    assert (
        of_first_try("<< params.n >> {{", jinja_environment_kwargs={"variable_start_string": "<<", "variable_end_string": ">>"})
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
