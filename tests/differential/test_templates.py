"""Templates give the text, or in native mode the value, that Airflow gives them. An error must be an error in both."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from paceline import DAG, BaseOperator, Param
from scheduler.settings import Paths, Settings
from scheduler.testing import runs

DATE = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
DATES = ("logical_date", "data_interval_start", "data_interval_end", "dag_run.logical_date", "dag_run.data_interval_start")
OF_A_DATE = (
    "", ".isoformat()", ".strftime('%Y/%m/%d %H')", ".date()", ".timestamp()", ".year", ".weekday()", " | ds", " | ts",
    " | ds_nodash", " | ts_nodash", " | ts_nodash_with_tz", ".add(days=1).to_date_string()", ".in_timezone('Asia/Tokyo').hour",
    ".subtract(months=1)", ".format('YYYY-MM-DD dddd')", ".start_of('week') | ds", ".timezone_name",
    ".diff(data_interval_start).days", ".replace(day=1) | ds", ".utcoffset()",
)  # fmt: skip
OTHERS = (
    "{{ ds }}", "{{ ds_nodash }}", "{{ ts }}", "{{ ts_nodash }}", "{{ ts_nodash_with_tz }}", "{{ run_id }}", "{{ dag.dag_id }}",
    "{{ task.task_id }}", "{{ ti.task_id }} {{ ti.dag_id }} {{ ti.run_id }}", "{{ ti.try_number }} {{ ti.map_index }}",
    "{{ task_instance.task_id }}", "{{ task_instance_key_str }}", "{{ dag_run.run_id }}", "{{ dag_run.conf }}",
    "{{ dag_run.conf['k'] }}", "{{ dag_run.conf.get('none', 1) }}", "{{ dag_run.conf.none }}", "{{ dag_run.run_type }}",
    "{{ params }}", "{{ params.n }}", "{{ params['words'] }}", "{{ params.words | join(', ') }}", "{{ params.text }}",
    "{{ params.none }}", "{{ params.none | default('x') }}", "{{ params.n + 1 }}", "{{ params.words[0] * 2 }}",
    "{{ macros.ds_add(ds, 7) }}", "{{ macros.ds_add(ds, -7) }}", "{{ macros.ds_format(ds, '%Y-%m-%d', '%d.%m.%y') }}",
    "{{ macros.datetime(2026, 1, 1) }}", "{{ macros.timedelta(days=1) }}", "{{ logical_date + macros.timedelta(days=1) }}",
    "{{ macros.json.dumps(params.words) }}", "{{ macros.time.strftime('%Y', macros.time.gmtime(0)) }}",
    "{{ macros.datetime_diff_for_humans(logical_date, logical_date.add(days=2)) }}", "{{ macros.random() < 1 }}",
    "{{ macros.uuid.UUID(int=1) }}", "{{ macros.dateutil.parser.parse('2026-01-02') }}", "{{ macros.yaml.safe_load('a: [1]') }}",
    "{{ macros.ds_format_locale(ds, '%Y-%m-%d', 'EEEE dd MMMM yyyy', 'de_DE') }}", "{{ macros.none() }}",
    "{{ double(3) }}", "{{ 'a' | shout }}", "{{ none }}", "{{ none | default('x') }}", "{{ undefined_name }}",
    "{{ undefined_name is defined }}", "{{ undefined_name.attribute }}", "{{ 1 / 0 }}", "{{ 1 +}}", "{% if %}",
    "{% for word in params.words %}{{ loop.index }}{{ word }};{% endfor %}", "{% if params.n > 2 %}big{% else %}small{% endif %}",
    "{% set x = params.n * 2 %}{{ x }}", "{% raw %}{{ ds }}{% endraw %}", "{# nothing #}text", "plain text", "", "trailing\n",
    "two\n\n", "{{ [1, 2, 3] | sum }}", "{{ {'a': 1} | tojson }}", "{{ params.words | tojson }}", "{{ 'ä' | upper }}",
    "{{ '<a>' }}", "{{ '<a>' | e }}", "{{ ds[:4] }}", "{{ ds.split('-')[1] }}", "{{ (1, 2) }}", "{{ 'x' ~ params.n }}",
    "{{ params.words | length }}", "{{ range(3) | list }}", "{{ dict(a=1) }}", "{{ true }} {{ none is none }}",
    "{{ ().__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ task.__init__ }}",
    "{{ map_index_template }}", "{{ inlets }} {{ outlets }}", "{{ '%05d' % params.n }}", "{{ '{:>4}'.format(params.n) }}",
    "{{ params.words | first | upper | shout }}", "{{ params.n is even }}", "{{ params | length }}",
    "{% do params.words.append('c') %}{{ params.words | length }}", "{{ logical_date > data_interval_start }}",
    "{{ (data_interval_end - data_interval_start).total_seconds() }}", "{{ logical_date == dag_run.logical_date }}",
)  # fmt: skip
TEMPLATES = [*(f"{{{{ {one}{rest} }}}}" for one, rest in product(DATES, OF_A_DATE)), *OTHERS]
#: Templates that differ: Difference.TEMPLATES.
KNOWN = {"{{ dag_run.run_type }}"}
#: The same in native mode, in which Airflow has no sandbox.
UNSAFE = {"{{ ().__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ task.__init__ }}"}

PROGRAM = """
import json, logging, sys, uuid
logging.disable(logging.CRITICAL)
from datetime import UTC, datetime, timedelta
from pathlib import Path
from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.api.datamodels._generated import DagRun, DagRunState, DagRunType, TIRunContext
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

date = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
def rendered(text, native):
    dag = DAG("d", schedule=None, start_date=date, render_template_as_native_obj=native,
              params={"k": "", "n": 3, "words": ["a", "b"], "text": Param("x", type="string")},
              user_defined_macros={"double": lambda x: 2 * x}, user_defined_filters={"shout": lambda text: text.upper() + "!"})
    task = BaseOperator(task_id="t", dag=dag)
    run = DagRun(dag_id="d", run_id="r", logical_date=date, data_interval_start=date - timedelta(days=1), data_interval_end=date,
                 run_after=date, start_date=date, run_type=DagRunType.MANUAL, state=DagRunState.RUNNING, conf={"k": "v"},
                 consumed_asset_events=[], end_date=None, clear_number=0, partition_key=None)
    known = TIRunContext(dag_run=run, max_tries=0, variables=[], connections=[], upstream_map_indexes=None, task_reschedule_count=0,
                         next_method=None, next_kwargs=None, xcom_keys_to_clear=[], should_retry=False)
    ti = RuntimeTaskInstance.model_construct(
        id=uuid.uuid4(), task_id="t", dag_id="d", run_id="r", try_number=1, map_index=-1, dag_version_id=uuid.uuid4(), hostname="h",
        queue="default", task=task, _ti_context_from_server=known, max_tries=0, start_date=date)
    try:
        value = task.render_template(text, ti.get_template_context())
        return [type(value).__name__, str(value)]
    except Exception as error:
        return "error"

print(json.dumps([rendered(*case) for case in json.loads(Path(sys.argv[1]).read_text())]))
"""


def rendered(text: str, native: bool, settings: Settings) -> Any:
    with DAG(
        "d", schedule=None, start_date=DATE, render_template_as_native_obj=native,
        params={"k": "", "n": 3, "words": ["a", "b"], "text": Param("x", type="string")},
        user_defined_macros={"double": lambda x: 2 * x}, user_defined_filters={"shout": lambda text: text.upper() + "!"},
    ):  # fmt: skip
        task = BaseOperator(task_id="t")
    values = runs.context_of(
        task, settings, logical_date=DATE, data_interval=(DATE - timedelta(days=1), DATE), run_id="r", conf={"k": "v"}
    )
    try:
        value = task.render_template(text, values)
        return ["dict" if isinstance(value, dict) else type(value).__name__, str(value)]
    except Exception:
        return "error"


def test_there_are_enough() -> None:
    assert len(TEMPLATES) >= 150


@pytest.mark.parametrize("native", [False, True])
def test_templates_give_the_same(native: bool, ask_airflow: Callable[..., Any], figures: dict[str, Any], tmp_path: Path) -> None:
    settings = Settings(paths=Paths(home=tmp_path / "home", dags_folder=tmp_path))
    (tmp_path / "cases.json").write_text(json.dumps([(text, native) for text in TEMPLATES]))

    theirs = ask_airflow(PROGRAM, str(tmp_path / "cases.json"))

    ours = [rendered(text, native, settings) for text in TEMPLATES]
    different = {
        text: (mine, other)
        for text, mine, other in zip(TEMPLATES, ours, theirs, strict=True)
        if mine != other and text not in (KNOWN | UNSAFE if native else KNOWN)
    }
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=True))
    known = len(TEMPLATES) - equal - len(different)
    figures["templates, native" if native else "templates"] = {"equal": equal, "of known classes": known, "new": len(different)}
    assert different == {}, json.dumps(different, indent=1)
