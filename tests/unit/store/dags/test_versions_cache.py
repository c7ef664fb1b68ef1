"""The cache of DAG versions does not grow in a scheduler that sees a new version at every turn."""

from support.scenario import chain

from scheduler.store.dags.versions import MAX_CACHED, Versions


def test_ten_thousand_versions_leave_a_bounded_number_behind() -> None:
    versions, data, read = Versions(), chain("d", 1).to_json(), []

    def read_again(number: int) -> str:
        read.append(number)
        return data

    for number in range(10_000):
        versions.get(number, lambda: read_again(number))  # noqa: B023
        versions.get(0, lambda: read_again(0))
    kept = [number for number in range(10_000) if _is_kept(versions, number)]

    assert len(kept) == MAX_CACHED
    assert 0 in kept, "what is used stays"
    assert read.count(0) == 1


def _is_kept(versions: Versions, number: int) -> bool:
    return number in versions._dags  # references of a process
