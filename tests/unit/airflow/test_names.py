"""The table of Airflow's names: each leads to a name that exists here, or to a reason."""

import pytest

from paceline.airflow import names
from paceline.airflow.names import MODULES, Ours
from paceline.airflow.table import REASONS, RENAMED, ROWS

#: Names that every file needs. The table must never lose them.
COMMON = {
    "airflow.DAG": Ours("paceline", "DAG"),
    "airflow.decorators.task": Ours("paceline", "task"),
    "airflow.sdk.task": Ours("paceline", "task"),
    "airflow.models.DagRun": Ours("paceline.authoring.context", "DagRun"),
    "airflow.sdk.types.RuntimeTaskInstanceProtocol": Ours("paceline", "TaskInstance"),
    "airflow.exceptions.AirflowClusterPolicyViolation": Ours("paceline.exceptions", "AirflowClusterPolicyViolation"),
    "airflow.models.Variable": Ours("paceline", "Variable"),
    "airflow.datasets.Dataset": Ours("paceline", "Asset"),
    "airflow.operators.dummy.DummyOperator": Ours("paceline.operators", "EmptyOperator"),
    "airflow.operators.python.get_current_context": Ours("paceline", "get_current_context"),
    "airflow.providers.standard.sensors.filesystem.FileSensor": Ours("paceline.sensors", "FileSensor"),
    "airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator": Ours("paceline.operators", "SparkSubmitOperator"),
    "airflow.providers.common.compat.sdk.TriggerRule": Ours("paceline", "TriggerRule"),
    "airflow.utils.timezone": Ours("paceline.airflow.timezone"),
    "airflow.sdk.timezone": Ours("paceline.airflow.timezone"),
    "airflow.providers.common.compat.sdk.timezone": Ours("paceline.airflow.timezone"),
}


@pytest.mark.parametrize("name", COMMON)
def test_a_common_name_leads_to_ours(name: str) -> None:
    module, _, last = name.rpartition(".")

    found = names.find(module, last)

    assert found == COMMON[name]
    found.get()


def test_a_module_is_in_one_row() -> None:
    listed = [module for row in ROWS for module in row.modules]

    assert sorted(set(listed)) == sorted(listed)


def test_a_name_that_is_unchanged_leads_to_an_object() -> None:
    for module in MODULES:
        for name, found in names.names_of(module):
            if found is not None:
                hooked = names.unchanged(module, name)
                assert hooked is not None and hooked.get() is not None, (module, name)


def test_reasons_and_new_names_are_for_names_of_the_table() -> None:
    listed = {name for row in ROWS for name in row.names}

    assert set(REASONS) - listed == set()
    assert set(RENAMED) - listed == set()


def test_a_name_without_counterpart_has_a_replacement() -> None:
    lacking = {name for module in MODULES for name, found in names.names_of(module) if found is None}

    assert lacking - set(REASONS) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("airflow.hooks.postgres_hook", "airflow.providers.postgres.hooks.postgres"),
        ("airflow.contrib.hooks.bigquery_hook", "airflow.providers.google.cloud.hooks.bigquery"),
        ("airflow.sensors.s3_key_sensor", "airflow.providers.amazon.aws.sensors.s3_key"),
        ("airflow.operators.hive_operator", "airflow.providers.apache.hive.operators.hive"),
        ("airflow.contrib.operators.kubernetes_pod_operator", "airflow.providers.cncf.kubernetes.operators.kubernetes_pod"),
    ],
)
def test_the_advice_for_an_old_module_names_its_place_today(old: str, new: str) -> None:
    (text,) = names.complaints(old, ["Thing"])

    assert text.startswith(f"Paceline has no counterpart of {old}, which is {new} now: import that module, and install ")


@pytest.mark.parametrize("module", ["airflow.operators.own_plugin", "airflow.nope", "airflow.contrib.operators.own_operator"])
def test_every_complaint_says_what_to_do(module: str) -> None:
    assert ": " in names.complaints(module, ["Thing"])[0]
    assert ": " in names.complaints("airflow.models", ["Thing"])[0]


def test_a_module_imported_as_a_name_has_the_reason_of_the_module() -> None:
    assert names.complaints("airflow", ["jobs"]) == [names.reason("airflow.jobs")]


def test_names_with_the_same_reason_are_one_sentence() -> None:
    assert len(names.complaints("airflow.timetables.base", ["Timetable", "DagRunInfo", "DataInterval"])) == 1


def test_names_without_counterpart_are_one_sentence() -> None:
    assert names.complaints("airflow.models", ["DAG", "One", "Two", "DagBag"]) == [
        "Paceline has no One, Two: it is for the database of Airflow, and a task has no access to the database of Paceline; use the"
        " REST API, or Variable and ti.xcom_pull.",
        "Paceline has no DagBag: load the files with `paceline dags list`, and test a DAG with `paceline dags test`.",
    ]


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("airflow.providers.docker.operators.docker", "docker"),
        ("airflow.providers.cncf.kubernetes.operators.pod", "cncf-kubernetes"),
        ("airflow.providers.google.cloud.hooks.gcs", "google"),
        ("airflow.providers.microsoft.azure.hooks.wasb", "microsoft-azure"),
        ("airflow.operators.hive_operator", "apache-hive"),
    ],
)
def test_a_missing_provider_is_an_error_that_names_its_package(module: str, package: str) -> None:
    assert f"`pip install --no-deps apache-airflow-providers-{package}`" in names.reason(module)


@pytest.mark.parametrize("name", ["TaskFail", "TaskReschedule", "RenderedTaskInstanceFields", "SlaMiss"])
def test_a_table_of_airflow_is_said_to_be_one(name: str) -> None:
    assert names.reason("airflow.models", name).startswith(
        f"Paceline has no {name}: it is for the database of Airflow, and a task has"
    )
