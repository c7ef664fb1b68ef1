"""The names of airflow.sdk beside DAG and task: hooks, notifiers, literals, options, object storage, asset aliases."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tries import Ti, run

import paceline
from paceline import (
    DAG,
    Asset,
    AssetAlias,
    BaseAsyncOperator,
    BaseHook,
    BaseNotifier,
    BaseOperator,
    DagRunState,
    Metadata,
    ObjectStoragePath,
    SkipMixin,
    TaskInstanceState,
    WeightRule,
    asset,
    get_parsing_context,
    literal,
    macros,
    task,
)
from paceline.authoring import connection
from paceline.authoring.asset import AssetRef, OutletEvents
from paceline.authoring.connection import Connection
from paceline.authoring.scope import collect
from paceline.exceptions import DagError, DownstreamTasksSkipped, NotFoundError, PacelineError, XComError
from paceline.operators import BashOperator, EmptyOperator, PythonOperator
from paceline.sensors import ExternalTaskMarker
from scheduler.dagfiles import load, problem
from scheduler.services import assets as service
from scheduler.store.dags.outlets import SucceededTask


class Shop(BaseHook):
    conn_name_attr = "shop_conn_id"

    def __init__(self, shop_conn_id: str = "shop", depth: int = 0) -> None:
        super().__init__()
        self.shop_conn_id, self.depth = shop_conn_id, depth


def describe() -> dict[str, Any]:
    return {"connection-types": [{"connection-type": "shop", "hook-class-name": f"{__name__}.Shop"}]}


@pytest.fixture
def _provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with an entry point, as pip installs it."""
    about = tmp_path / "shop-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{connection.PROVIDERS}]\nshop = {__name__}:describe\n")
    monkeypatch.syspath_prepend(tmp_path)
    connection._hook_classes.cache_clear()
    yield
    connection._hook_classes.cache_clear()


@pytest.mark.usefixtures("_provider")
def test_an_installed_package_has_the_hook_of_a_connection() -> None:
    hook = Connection(conn_id="c", conn_type="shop").get_hook(hook_params={"depth": 3})

    assert (type(hook).__name__, hook.shop_conn_id, hook.depth) == ("Shop", "c", 3)
    assert hook.log.name.endswith("Shop")
    with pytest.raises(NotFoundError, match="No installed package has a hook for connections of the type 'none'"):
        Connection(conn_id="c", conn_type="none").get_hook()


class Mail(BaseNotifier):
    template_fields = ("text",)
    sent: list[str] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


def test_a_notifier_is_a_callback_with_templates() -> None:
    with DAG("d", schedule=None, user_defined_macros={"team": "blue"}) as dag:
        mail = Mail("{{ team }}: {{ run_id }}")
        EmptyOperator(task_id="t", on_failure_callback=mail)

    mail({"dag": dag, "run_id": "r1"})
    mail({"dag": dag, "run_id": "r2"})

    assert Mail.sent == ["blue: r1", "blue: r2"]


def test_a_literal_is_no_template() -> None:
    with DAG("d", schedule=None) as dag:
        PythonOperator(task_id="t", python_callable=lambda *args: list(args), op_args=[literal("{{ ds }}"), "{{ ds }}"])
        BashOperator(task_id="bash", bash_command=literal("echo '{{ ds }}'"))

    assert run(dag.get_task("t"))[0] == ["{{ ds }}", "2026-03-04"]
    assert run(dag.get_task("bash"))[0] == "{{ ds }}"


def test_small_names() -> None:
    assert (TaskInstanceState.SUCCESS, DagRunState.FAILED, WeightRule.UPSTREAM) == ("success", "failed", "upstream")
    assert get_parsing_context() == (None, None) and macros.ds_add("2026-01-01", 1) == "2026-01-02"
    assert paceline.__version__


def test_files_of_object_storage_have_the_methods_of_pathlib(tmp_path: Path) -> None:
    base = ObjectStoragePath(f"file://{tmp_path}/data")
    first, deep = base / "a.csv", base / "x" / "y"
    deep.mkdir(parents=True)
    deep.mkdir(exist_ok=True)
    first.touch()
    first.touch()
    with pytest.raises(FileExistsError):
        first.touch(exist_ok=False)
    assert first.write_text("ä") == 2 and first.read_text() == "ä" and first.exists() and first.is_file() and first.size() == 2
    with first.open("rb") as file:
        assert file.read() == "ä".encode()

    copied = first.copy_into(deep)
    assert [path.name for path in deep.iterdir()] == ["a.csv"] == [path.name for path in base.glob("*/*/*.csv")]
    assert [path.name for path in base.rglob("*.csv")] and copied == deep / "a.csv" and first.exists()
    moved = copied.rename(deep / "b.csv").move_into(base)
    assert moved == base / "b.csv" and moved.exists() and not (deep / "b.csv").exists()
    assert moved.samefile(str(moved)) and not moved.samefile(base / "none") and moved.checksum() == moved.checksum()
    assert [(folder.name, files) for folder, _, files in base.walk()][1:] == [("x", []), ("y", [])]
    moved.move(base / "c.csv")
    assert not moved.exists() and (base / "c.csv").exists()


def test_paths_of_object_storage_have_the_methods_of_pathlib() -> None:
    path = ObjectStoragePath("s3://store@bucket/raw/a.tar.gz")

    assert str(path.with_suffix(".zip")) == "s3://store@bucket/raw/a.tar.zip" and path.suffixes == [".tar", ".gz"]
    assert str(path.with_name("b.csv").with_stem("c")) == "s3://store@bucket/raw/c.csv"
    assert [str(parent) for parent in path.parents] == ["s3://store@bucket/raw", "s3://store@bucket"]
    assert path.is_relative_to("s3://bucket/raw") and not path.is_relative_to("gs://bucket/raw")
    assert str(path.relative_to("s3://bucket")) == "raw/a.tar.gz" and path.match("*.gz") and path.as_posix() == str(path.resolve())
    with pytest.raises(ValueError, match="is not below"):
        path.relative_to("s3://other")
    s3 = ObjectStoragePath("s3://aws_default@bucket/key", anon=True) / "x.txt"
    assert (s3.conn_id, s3.bucket, s3.key, s3.stem) == ("aws_default", "bucket", "key/x.txt", "x")
    assert s3 == ObjectStoragePath(str(s3)) and str(s3) == "s3://aws_default@bucket/key/x.txt"
    assert s3.parent.storage_options == {"anon": True}


class Later(BaseAsyncOperator):
    async def aexecute(self, context: Any) -> int:
        await asyncio.sleep(0)
        return 3


def test_coroutines_are_run() -> None:
    with DAG("d", schedule=None) as dag:
        Later(task_id="operator")

        @task
        async def function(one: int, ds: str = "") -> list[Any]:
            await asyncio.sleep(0)
            return [one, ds]

        function(1)

    assert run(dag.get_task("operator"))[0] == 3 and run(dag.get_task("function"))[0] == [1, "2026-03-04"]


def test_a_generator_yields_metadata_of_its_outlets() -> None:
    one, alias = Asset("one"), AssetAlias("alias")
    with DAG("d", schedule=None) as dag:

        @task(outlets=[one, alias])
        def function(outlet_events: OutletEvents | None = None) -> Iterator[Metadata]:
            yield Metadata(one, {"rows": 1})
            yield Metadata(Asset("two"), {"rows": 2}, alias=alias)
            assert outlet_events is not None
            seen.append(outlet_events.to_xcom())
            return 5

        @task
        def wrong() -> Iterator[int]:
            yield 1

        function()
        wrong()
    seen: list[Any] = []

    assert run(dag.get_task("function"))[0] == 5
    assert seen == [
        {
            "one": {"extra": {"rows": 1}},
            "alias:alias": {"extra": {"__assets__": [{"uri": "two", "name": "two", "extra": {"rows": 2}}]}},
        }
    ]
    with pytest.raises(XComError, match="A task can yield only Metadata, not 1"):
        run(dag.get_task("wrong"))


def test_an_alias_updates_the_assets_that_were_added_and_itself() -> None:
    outlets = OutletEvents([AssetAlias("x")])
    outlets[AssetAlias("x")].add(Asset("s3://a"), extra={"n": 1})
    extras = {uri: value["extra"] for uri, value in json.loads(json.dumps(outlets.to_xcom())).items()}
    success = SucceededTask(1, "d", "r", "t", -1, None, extras)  # type: ignore[arg-type]

    updates = service._of_outlet("alias:x", success)

    assert [(update.uri, update.extra) for update in updates] == [("s3://a", {"n": 1}), ("alias:x", {"n": 1, "asset": "s3://a"})]
    assert service._of_outlet("alias:y", success) == []
    with pytest.raises(PacelineError, match="add\\(\\) takes an asset only for an alias"):
        OutletEvents([Asset("b")])["b"].add(Asset("c"))


def test_references_to_assets_of_other_files() -> None:
    assert Asset.ref(name="a") == AssetRef("a") and Asset.ref(uri="s3://a").uri == "s3://a"
    with pytest.raises(DagError, match="either a name or a URI"):
        Asset.ref()


def test_one_function_updates_several_assets() -> None:
    with collect() as made:

        @asset.multi(schedule="@daily", outlets=[Asset("a"), Asset("b")])
        def both(context: Any) -> None: ...

        @asset(schedule=None)
        @task(retries=3)
        def single() -> None: ...

    first, second = made
    assert (first.dag_id, [outlet.uri for outlet in first.get_task("both").outlets]) == ("both", ["a", "b"])  # type: ignore[attr-defined]
    assert both.uris == ["a", "b"] and second.task_dict["single"].retries == 3


class Skipping(BaseOperator, SkipMixin):
    def execute(self, context: Any) -> None:
        self.skip(context["ti"], self.downstream_list)


class Choosing(BaseOperator, SkipMixin):
    def execute(self, context: Any) -> None:
        self.skip_all_except(context["ti"], "a")


def test_operators_that_skip_other_tasks() -> None:
    with DAG("d", schedule=None) as dag:
        Skipping(task_id="all") >> EmptyOperator(task_id="b")
        Choosing(task_id="some") >> [EmptyOperator(task_id="a"), EmptyOperator(task_id="c")]

    ti = Ti("all")
    assert run(dag.get_task("all"), ti)[0] is None
    assert ti.skipped == ["b"] and ti.pushed["skipmixin_key"] == {"skipped": ["b"]}
    assert run(dag.get_task("some"), ti := Ti("some"))[1].skipped == ["c"]
    with pytest.raises(DownstreamTasksSkipped):
        raise DownstreamTasksSkipped(tasks=["b"])


def test_a_marker_of_another_dag_does_nothing() -> None:
    with DAG("d", schedule=None):
        marker = ExternalTaskMarker(task_id="t", external_dag_id="other", external_task_id="x")

    assert marker.worker_runtime == "empty" and marker.external_dag_id == "other"


def test_an_unsupported_name_is_refused_with_its_replacement(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from paceline import DAG, AssetAccessControl")
    (tmp_path / "b.py").write_text("from airflow.sdk import ResumableJobMixin")

    for file, text in (
        ("a.py", "has no AssetAccessControl: Paceline has no teams"),
        ("b.py", "ResumableJobMixin: SparkSubmitOperator resumes"),
    ):
        with pytest.raises(ImportError) as caught:
            load.load(tmp_path, file)
        assert text in str(problem.advice(caught.value, tmp_path / file))


# ------------------------------------------------------------------ other Pythons


def test_a_function_runs_in_another_python() -> None:
    with DAG("d", schedule=None) as dag:

        @task.external_python(python=sys.executable, env_vars={"COLOR": "{{ ds }}"})
        def other(number: int, logical_date: Any, *, ds: str) -> list[Any]:
            import os

            return [number, str(logical_date), ds, os.environ["COLOR"]]

        @task.branch_external_python(python=sys.executable)
        def choose() -> str:
            return "left"

        other(1)
        choose() >> [EmptyOperator(task_id="left"), EmptyOperator(task_id="right")]

    assert run(dag.get_task("other"))[0] == [1, "2026-03-04 12:00:00+00:00", "2026-03-04", "2026-03-04"]
    assert run(dag.get_task("choose"))[1].skipped == ["right"]


def test_errors_of_another_python() -> None:
    with DAG("d", schedule=None) as dag:

        @task.external_python(python=sys.executable, skip_on_exit_code=3)
        def ended(code: int) -> None:
            import sys

            sys.exit(code)

        @task.external_python(python="/no/python")
        def missing(ti: Any) -> None: ...

        for code in (3, 4):
            ended.override(task_id=f"t{code}")(code)
        missing()

    with pytest.raises(PacelineError, match="which skips the task"):
        run(dag.get_task("t3"))
    with pytest.raises(PacelineError, match="failed with exit code 4"):
        run(dag.get_task("t4"))
    with pytest.raises(PacelineError, match="'ti' cannot be passed to another Python"):
        run(dag.get_task("missing"))
    with pytest.raises(DagError, match="must be a function with a name"), DAG("e", schedule=None):
        task.virtualenv(task_id="t")(lambda: None)()
