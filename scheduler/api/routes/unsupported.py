"""Routes of Airflow's API that Paceline lacks: 501 with an explanation, instead of an unclear 404."""

from collections.abc import Callable

from scheduler.api.access import ADMIN, OPERATOR_OF_DAG
from scheduler.api.call import Api, new_router
from scheduler.api.errors import UnsupportedError

router = new_router(include_in_schema=False)

TEST = "Paceline tests connections that are stored, in a worker: POST /api/v2/connectionTests with a connection_id."
#: Method and path, and why there is no such thing here.
REASONS = {
    "POST /connections/test": TEST,
    "POST /connections/enqueue-test": TEST,
    "GET /connections/enqueue-test": TEST,
    "POST /connections/defaults": "Paceline has no default connections.",
    "POST /dags/{dag_id}/clearPartitions": "Paceline does not clear runs by partition: name them in POST .../clearDagRuns.",
}


def _refuses(reason: str) -> Callable[[Api], None]:
    def refuse(api: Api) -> None:
        raise UnsupportedError(reason)

    return refuse


for _place, _reason in REASONS.items():
    _method, _, _path = _place.partition(" ")
    router.declare(_method, _path, OPERATOR_OF_DAG if "{dag_id}" in _path else ADMIN, name="unsupported")(_refuses(_reason))
