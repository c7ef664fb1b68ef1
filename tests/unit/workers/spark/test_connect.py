"""Applications of a Connect server: their session is named after the tag, and no call waits for an unreachable server."""

import pytest

from workers.spark.clusters import connect
from workers.spark.clusters.status import ClusterUnreachableError

TAG = "paceline-0123abcd-7-2"


def test_the_session_of_a_tag_is_the_same_in_any_process_and_with_any_url() -> None:
    session = f"session_id={connect.session_of(TAG)}"

    assert connect.remote("sc://h:15002", TAG) == f"sc://h:15002/;{session}"
    assert connect.remote("sc://h:15002/;token=t;session_id=x", TAG) == f"sc://h:15002/;token=t;{session}"
    assert connect.session_of(TAG) != connect.session_of("paceline-0123abcd-7-3")


def test_an_interruption_of_an_unreachable_server_is_reported_in_time() -> None:
    with pytest.raises(ClusterUnreachableError, match="did not stop its session"):
        connect.interrupt("sc://127.0.0.1:1", TAG, within_s=1.0)
