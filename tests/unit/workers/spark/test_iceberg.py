"""The jars of Iceberg for a Spark, and the conf of a session that uses the catalog of a try."""

import json
from pathlib import Path

import pytest

from scheduler.catalog.access import Access
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Tables
from workers.spark import iceberg
from workers.spark.applications import submitter
from workers.spark.clusters import command, target
from workers.spark.clusters.command import Submission
from workers.spark.iceberg import JarsMissingError
from workers.spark.java import Installed

ACCESS = Access("http://127.0.0.1:1", "hush", "file:///w", "lake")


class Catalog:
    """The catalog of a try, which drivers on other machines cannot reach."""

    def give(self, *, elsewhere: bool) -> Access | None:
        return None if elsewhere else ACCESS

    def take_over(self) -> None:
        raise AssertionError("no application is resumed")


class ReachableCatalog(Catalog):
    """One that every driver can reach."""

    def give(self, *, elsewhere: bool) -> Access | None:
        return ACCESS


def submission(master: str, mode: str = "client", **options: str) -> Submission:
    return Submission(
        target=target.choose(master, mode, None, None),
        tag="t",
        name="n",
        application="/a.py",
        options=options,
        conf={"spark.x": "1"},
    )


def added(given: Submission, mine: Settings, catalog: Catalog) -> Submission:
    where = given.target
    return submitter.added(
        given, target.cluster_of(where.kind, where.address, {}, where.deploy_mode, lambda _: None), mine, catalog
    )


def settings(home: Path, **tables: str) -> Settings:
    return Settings(paths=Paths(home=home), tables=Tables(**tables))


def spark(*version: int, scala: str = "2.13") -> Installed:
    return Installed(Path("/spark"), (version[0], version[1]), scala)


def test_each_release_of_spark_has_a_runtime_of_its_own(tmp_path: Path) -> None:
    mine = settings(tmp_path)

    assert iceberg.packages_for(mine, spark(4, 1)) == "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    assert iceberg.packages_for(mine, spark(3, 5, scala="2.12")).startswith("org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:")
    assert iceberg.packages_for(settings(tmp_path, spark_packages="a:b:1"), spark(4, 3)) == "a:b:1"


def test_a_spark_that_iceberg_does_not_support_is_named_with_those_that_it_does(tmp_path: Path) -> None:
    with pytest.raises(JarsMissingError, match=r"no release for Spark 4\.3: install PySpark 3\.5, 4\.0 or 4\.1"):
        iceberg.jars(settings(tmp_path), spark(4, 3))


def test_none_fetches_nothing(tmp_path: Path) -> None:
    with pytest.raises(JarsMissingError, match=r"because tables\.spark_packages is none"):
        iceberg.jars(settings(tmp_path, spark_packages="none"), spark(4, 1))
    assert not (tmp_path / "jars").exists()


def test_jars_of_the_setting_are_files_folders_and_urls(tmp_path: Path) -> None:
    folder, one = tmp_path / "jars", tmp_path / "one.jar"
    folder.mkdir()
    for path in (one, folder / "b.jar", folder / "a.jar", folder / "README"):
        path.touch()
    given = settings(tmp_path, spark_jars=f"{one}, {folder},s3a://x/y.jar")

    assert iceberg.jars(given) == [str(one), str(folder / "a.jar"), str(folder / "b.jar"), "s3a://x/y.jar"]
    with pytest.raises(JarsMissingError, match=r"/nowhere of tables\.spark_jars is neither"):
        iceberg.jars(settings(tmp_path, spark_jars="/nowhere"))


def test_a_jvm_keeps_the_jars_and_extensions_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "i.jar").touch()
    mine = settings(tmp_path, spark_jars=str(tmp_path))

    conf = iceberg.jvm_conf(mine, {"spark.jars": "/a.jar", "spark.sql.extensions": "x.Y", iceberg.JAVA_OPTIONS: "-Dmine=1"})

    assert conf == {
        "spark.jars": f"/a.jar,{tmp_path}/i.jar",
        "spark.sql.extensions": f"x.Y,{iceberg.OURS}",
        iceberg.JAVA_OPTIONS: f"-Dmine=1 {iceberg.ARROW}",
    }
    assert iceberg.extensions(conf)["spark.sql.extensions"] == f"x.Y,{iceberg.OURS}", "once"


def test_a_session_gets_the_catalog_as_its_default_unless_names_mean_tables_of_hive() -> None:
    plain = iceberg.session_conf(ACCESS, {})
    hive = iceberg.session_conf(ACCESS, {"spark.sql.catalogImplementation": "hive"})
    own = iceberg.session_conf(ACCESS, {"spark.sql.sources.partitionOverwriteMode": "static"})

    assert plain["spark.sql.defaultCatalog"] == "lake" and plain["spark.sql.catalog.lake.token"] == "hush"
    assert plain["spark.sql.catalog.lake.cache-enabled"] == "false"
    # Without them, Iceberg warns twice in the log of each task.
    assert plain["spark.sql.catalog.lake.rest.auth.type"] == "oauth2"
    assert plain["spark.sql.catalog.lake.oauth2-server-uri"] == f"{plain['spark.sql.catalog.lake.uri']}/v1/oauth/tokens"
    assert "spark.sql.defaultCatalog" not in hive and "spark.sql.catalog.lake" in hive
    assert "spark.sql.sources.partitionOverwriteMode" not in own
    assert "hush" not in str(iceberg.session_conf(ACCESS, {}, "env:X").values())


def test_an_application_gets_the_token_in_its_environment_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "i.jar").touch()
    given = submission("local[1]", jars="/own.jar")

    made = added(given, settings(tmp_path, spark_jars=str(tmp_path)), Catalog())

    assert made.environment == {"PACELINE_TABLES_TOKEN": "hush", "PACELINE_TABLES_URI": ACCESS.uri}
    assert made.conf["spark.sql.catalog.lake.token"] == "env:PACELINE_TABLES_TOKEN" and made.conf["spark.x"] == "1"
    assert made.options["jars"] == f"/own.jar,{tmp_path}/i.jar"
    assert not any("hush" in word for word in command.argv(made, binary="spark-submit"))


def test_a_driver_in_a_cluster_fetches_the_packages_itself(tmp_path: Path) -> None:
    made = added(submission("spark://m:7077", "cluster"), settings(tmp_path, spark_packages="a:b:1"), ReachableCatalog())

    assert made.options == {"packages": "a:b:1"}


def test_a_connect_session_gets_the_catalog_and_keeps_the_default_of_its_server(tmp_path: Path) -> None:
    made = added(submission("sc://h:1"), settings(tmp_path), ReachableCatalog())

    conf = json.loads(made.environment["PYSPARK_REMOTE_INIT_CONF_0"])
    assert conf["spark.sql.catalog.lake.token"] == "hush" and "spark.sql.defaultCatalog" not in conf
    assert (made.environment["PACELINE_TABLES_TOKEN"], made.environment["PACELINE_TABLES_URI"]) == ("hush", ACCESS.uri)
    assert dict(made.conf) == {"spark.x": "1"}, "a server has its own conf"


@pytest.mark.parametrize(
    ("master", "mode", "jars", "why"),
    [
        ("spark://m:7077", "cluster", "", "tables.url"),
        ("sc://h:1", "client", "", "tables.url"),
        ("local[1]", "client", "/nowhere", "/nowhere of tables.spark_jars"),
    ],
)
def test_an_application_that_cannot_use_tables_runs_without_them_and_its_log_has_the_reason(
    master: str, mode: str, jars: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = submission(master, mode)

    assert added(given, settings(tmp_path, spark_jars=jars), Catalog()) == given
    assert why in capsys.readouterr().out
