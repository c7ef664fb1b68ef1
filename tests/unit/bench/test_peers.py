"""The comparison with Airflow: the same DAG files, and the report of its runs."""

import ast
from pathlib import Path

import pytest

from bench import shapes
from bench.peers import profiles, report, servers
from bench.peers.compare import BLOCKS, Pair, sizes
from bench.peers.imports import for_airflow
from bench.peers.run import Run


def run(makespan_s: float, tasks: list[tuple[float, float]], cpu_s: float) -> Run:
    return Run(queued_at=1000.0, ended_at=1000.0 + makespan_s, tasks=tasks, cpu_s=cpu_s, calibration_ms=5.0)


@pytest.mark.parametrize("shape", shapes.full().values(), ids=lambda shape: shape.name)
def test_only_import_lines_differ(shape: shapes.Shape) -> None:
    for text in shape.files.values():
        changed = for_airflow(text)
        differing = [after for before, after in zip(text.splitlines(), changed.splitlines(), strict=True) if before != after]
        assert differing == ["from airflow.sdk import DAG, task"]
        ast.parse(changed)


def test_a_module_that_airflow_has_elsewhere_is_not_guessed() -> None:
    with pytest.raises(KeyError, match=r"paceline\.operators"):
        for_airflow("from paceline.operators import EmptyOperator\n")


def test_every_shape_of_every_block_is_there_in_both_sizes() -> None:
    wanted = {name for block in BLOCKS for name in block.shapes}
    for small in (True, False):
        found = sizes(small=small)
        assert wanted < found.keys()
        assert all(found[name].dag_ids == (name,) for name in found)


def test_airflow_gets_a_database_and_a_redis_number_of_its_own() -> None:
    environment = profiles.environment(
        profiles.BEST_WIDE,
        home=Path("/h"),
        database_url=servers.other_database("postgresql://postgres@/paceline?host=/run/p", "airflow"),
        broker_url=servers.other_number("redis+socket:///run/r/redis.sock?virtual_host=0", 3),
        port=8080,
    )
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "postgresql+psycopg2://postgres@/airflow?host=/run/p"
    assert environment["AIRFLOW__CELERY__BROKER_URL"] == "redis+socket:///run/r/redis.sock?virtual_host=3"
    assert environment["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"] == "0.1"
    assert servers.other_number("redis://h:6379/0", 3) == "redis://h:6379/3"


def test_the_defaults_are_airflows() -> None:
    with_defaults, with_best = (
        profiles.environment(profile, home=Path("/h"), database_url="postgresql://p@h/a", broker_url="redis://h/1", port=1)
        for profile in (profiles.DEFAULTS, profiles.BEST_CHAIN)
    )
    assert with_best.keys() - with_defaults.keys() == {profiles.variable(key) for key in profiles.BEST_CHAIN.settings}


def test_figures_are_medians_and_their_ratio() -> None:
    pair = Pair(profiles.DEFAULTS, shapes.chain(3))
    pair.airflow = [run(30.0, [(1.0, 2.0), (4.0, 5.0), (9.0, 10.0)], cpu_s=1.5)]
    pair.paceline = [run(seconds, [(0.0, 0.1), (0.102, 0.2), (0.203, 0.3)], cpu_s=0.03) for seconds in (0.1, 0.3, 0.2)]
    row = report.figures(pair)
    assert (row["ratio"], row["cpu_ratio"]) == (150.0, 50.0)
    assert row["airflow"]["hop_ms"]["p50"] == 4000.0
    assert row["paceline"]["hop_ms"]["p50"] == 101.5
    assert row["paceline"]["makespan_range_s"] == [0.1, 0.3]
    assert row["paceline"]["tasks_per_s"] == 15.0
    assert "| 150 x |" in report.table([row])


def test_wide_has_no_hops_of_its_own() -> None:
    pair = Pair(profiles.DEFAULTS, shapes.wide(1), airflow=[run(2.0, [], 1.0)], paceline=[run(1.0, [], 1.0)])
    assert "hop_ms" not in report.figures(pair)["airflow"]


def test_the_readme_keeps_the_last_table_and_its_own_words(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    pair = Pair(
        profiles.DEFAULTS, shapes.chain(2), airflow=[run(2.0, [(0, 1), (1, 2)], 1.0)], paceline=[run(1.0, [(0, 1), (1, 2)], 1.0)]
    )
    where = {"cpus": 2, "cpu": "x", "memory_gb": 8, "system": "s", "python": "3", "airflow": "3.3.2", "commit": "abc"}
    report.keep(where, [report.figures(pair)], readme)
    text = readme.read_text()
    assert text.startswith("before\n<!-- results: begin -->\n")
    assert text.endswith("| 2 x | 1,000.0 | 1,000.0 | 500.00 | 500.00 | 5.0 / 5.0 | 0.0 |\n<!-- results: end -->\nafter\n")
    assert "Paceline at abc." in text and "old" not in text
    report.keep(where, [report.figures(pair)], readme)
    assert readme.read_text() == text
