"""Airflow's names that provider packages import behave as in Airflow."""

import pytest

from paceline.airflow import providers, timezone
from paceline.sensors.base import BaseSensorOperator


def test_names_and_objects() -> None:
    assert providers.import_string("paceline.airflow.timezone.utcnow") is timezone.utcnow
    assert providers.qualname(timezone.utcnow) == "paceline.airflow.timezone.utcnow"
    assert providers.qualname(BaseSensorOperator, exclude_module=True) == "BaseSensorOperator"
    for wrong in ("utcnow", "paceline.airflow.timezone.nope", "no_such_module.x"):
        with pytest.raises(ImportError):
            providers.import_string(wrong)


def test_dicts_and_lists() -> None:
    assert providers.merge_dicts({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 3}, "d": {"e": 1}}) == {
        "a": {"b": 3, "c": 2},
        "d": {"e": 1},
    }
    assert providers.prune_dict({"a": None, "b": [None, {"c": None, "d": 0}]}) == {"b": [{"d": 0}]}
    assert providers.prune_dict({"a": "", "b": [0, 1], "c": {"d": ""}}, mode="truthy") == {"b": [1]}
    assert list(providers.chunks([1, 2, 3], 2)) == [[1, 2], [3]]
    assert [providers.exactly_one(None, 1), providers.exactly_one(1, 2), providers.at_most_one(None, "")] == [True, False, True]
    assert [providers.to_boolean(text) for text in ("Yes", " on ", "0", None)] == [True, True, False, False]


def test_a_sensor_that_only_pokes() -> None:
    @providers.poke_mode_only
    class Own(BaseSensorOperator):
        def __init__(self, *, path: str, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.path = path

    assert Own(task_id="a", path="x").path == "x"
    with pytest.raises(ValueError, match="can only run with mode='poke'"):
        Own(task_id="a", path="x", mode="reschedule")


def test_a_collector_of_lineage_that_collects_nothing() -> None:
    collector = providers.get_hook_lineage_collector()
    collector.add_input_asset(None, uri="s3://a")
    collector.add_extra(None, "key", 1)

    assert collector.create_asset(scheme="s3") is None
    assert (list(collector.collected_assets.inputs), collector.has_collected) == ([], False)
    assert hasattr(collector, "_extra"), "otherwise common.compat adds add_extra itself, for which it needs classes of Airflow"


def test_arguments_of_a_function() -> None:
    offered = {"ds": 1, "ti": 2, "n": 3}

    assert providers.determine_kwargs(lambda n, ds=None: None, [5], offered) == {"ds": 1}
    assert providers.determine_kwargs(lambda n, **context: None, [5], offered) == {"ds": 1, "ti": 2}
    assert providers.determine_kwargs(lambda: None, [], offered) == {}


def test_moments() -> None:
    naive = timezone.make_naive(timezone.utc_epoch, timezone.utc)

    assert timezone.parse("1970-01-01T00:00:00") == timezone.datetime(1970, 1, 1) == timezone.make_aware(naive)
    assert timezone.is_naive(naive) and timezone.is_localized(timezone.utcnow())
    assert timezone.convert_to_utc(naive) == timezone.from_timestamp(0) == timezone.utc_epoch
    assert timezone.coerce_datetime(None) is None
    assert timezone.parse_timezone(3600).utcoffset(None) == timezone.parse_timezone("+01:00").utcoffset(None)
