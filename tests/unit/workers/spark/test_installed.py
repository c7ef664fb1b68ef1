"""The installation of Spark: its versions by the names of its jars, and how it reads a properties file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.spark import conf, java

REPOSITORY = Path(__file__).parents[4]


def spark(folder: Path, jar: str) -> Path:
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / jar).touch()
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text("# of the site\nspark.a.b  theirs\nspark.c.d=kept\n")
    return folder


@pytest.mark.parametrize(
    ("jar", "version", "scala"),
    [
        ("spark-core_2.12-3.5.9.jar", (3, 5), "2.12"),
        ("spark-core_2.13-4.1.4.jar", (4, 1), "2.13"),
        ("spark-core_2.12-3.5.1.7.2.18-amzn-0.jar", (3, 5), "2.12"),
        ("spark-core_2.13-4.10.0-SNAPSHOT.jar", (4, 10), "2.13"),
    ],
)
def test_the_name_of_a_jar_has_the_version_of_spark_and_of_scala(
    jar: str, version: tuple[int, int], scala: str, tmp_path: Path
) -> None:
    found = java.find_spark(str(spark(tmp_path, jar)))

    assert found is not None and (found.version, found.scala) == (version, scala)
    assert found.release == f"{version[0]}.{version[1]}"
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.touch()
    link = tmp_path / "spark3-submit"
    link.symlink_to(binary)
    assert java.spark_of_binary(str(link)) == found, "a link to it belongs to the same installation"


def test_a_folder_without_spark_has_no_version(tmp_path: Path) -> None:
    assert java.find_spark(str(tmp_path)) is None
    assert java.spark_of_binary("/usr/bin/true") is None


def test_the_installed_spark_is_that_of_pyspark_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = java.find_spark()
    assert found is not None and found.release == ".".join(pyspark.__version__.split(".")[:2])

    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert java.spark_home() == str(tmp_path)


def test_without_pyspark_the_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from workers.spark import java\n"
        "assert java.find_spark() is None\n"
        "try: java.spark_home()\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in {"SPARK_HOME", "PYTHONPATH"}}

    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True)

    assert ended.stdout.strip() == "pyspark", ended.stderr


def test_a_properties_file_is_read_on_top_of_the_defaults_of_its_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    old = java.find_spark(str(spark(tmp_path / "old", "spark-core_2.12-3.5.9.jar")))
    new = java.find_spark(str(spark(tmp_path / "new", "spark-core_2.13-4.0.0.jar")))

    assert conf.as_properties_file({"spark.a.b": "ours"}, new) == ("spark.a.b=ours\n", ["--load-spark-defaults"])
    assert conf.as_properties_file({"spark.a.b": "ours"}, None)[1] == ["--load-spark-defaults"]
    # Spark 3 has no such option, and would ignore its spark-defaults.conf.
    assert conf.as_properties_file({"spark.a.b": "ours"}, old) == ("spark.a.b=ours\nspark.c.d=kept\n", [])
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert conf.as_properties_file({"spark.a.b": "ours"}, old) == ("spark.a.b=ours\n", [])
