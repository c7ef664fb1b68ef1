"""Compares the runs of an Airflow, read through its REST API, with those of Paceline for the same DAGs and dates."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

import requests
from sqlalchemy import Engine

from paceline.exceptions import CredentialsError, PacelineError, UnreachableError
from scheduler.store.db.database import transact
from scheduler.store.read import reads

#: Seconds for one request.
TIMEOUT_S = 30.0
PAGE = 100
FINISHED = ("success", "failed")
#: The name of a state that a system does not have.
MISSING = "none"

#: {(task ID, map index): state} of a run.
States = Mapping[tuple[str, int], str | None]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run of one of the two systems."""

    run_id: str
    logical_date: datetime
    state: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A run or task instance with different states; the task ID is empty for the run. None: it is missing there."""

    dag_id: str
    logical_date: datetime
    task_id: str
    map_index: int
    airflow: str | None
    paceline: str | None


class Airflow:
    """A client of the REST API of Airflow 3 (`/api/v2`)."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def log_in(cls, url: str, user: str, password: str) -> Self:
        """A client with a token of this user. CredentialsError, UnreachableError."""
        client = cls(url, "")
        answer = client._ask("POST", "/auth/token", json={"username": user, "password": password})
        return cls(url, str(answer.get("access_token", "")))

    def runs(self, dag_id: str, since: datetime) -> list[Run]:
        """The finished runs of a DAG with a logical date from `since` on, oldest first; empty if Airflow has no such DAG."""
        query = {"logical_date_gte": since.isoformat(), "state": list(FINISHED), "order_by": "logical_date"}
        rows = self._pages(f"/api/v2/dags/{_quoted(dag_id)}/dagRuns", "dag_runs", query)
        return [run for row in rows if (run := run_of(row["dag_run_id"], row["logical_date"], row["state"])) is not None]

    def states(self, dag_id: str, run_id: str) -> States:
        rows = self._pages(f"/api/v2/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}/taskInstances", "task_instances", {})
        return {(row["task_id"], row.get("map_index", -1)): row["state"] for row in rows}

    def _pages(self, path: str, name: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            answer = self._ask("GET", path, params={**query, "limit": PAGE, "offset": offset})
            rows = answer.get(name, [])
            yield from rows
            offset += len(rows)
            if len(rows) < PAGE or offset >= answer.get("total_entries", offset + 1):
                return

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer = self._session.request(method, self._url + path, timeout=TIMEOUT_S, **given)
            if answer.status_code in {401, 403}:
                raise CredentialsError(f"Airflow at {self._url} rejected the token or the user ({answer.status_code}).")
            if answer.status_code == 404 and method == "GET":
                return {}
            answer.raise_for_status()
            content = answer.json()
        except requests.HTTPError as error:
            raise PacelineError(f"Airflow at {self._url} answered {path} with {error.response.status_code}.") from None
        except requests.JSONDecodeError:
            raise PacelineError(f"The answer to {path} is not JSON: {self._url} is not the address of an Airflow 3.") from None
        except requests.RequestException as error:
            raise UnreachableError(f"Airflow at {self._url} cannot be reached: {type(error).__name__}.") from None
        return content if isinstance(content, dict) else {}


def compare(engine: Engine, airflow: Airflow, dag_id: str, since: datetime, done: set[tuple[str, str]]) -> list[Difference]:
    """The differences of the finished runs of a DAG that are not in `done`, which gets their DAG and run IDs."""
    ours = [
        run
        for row in transact(engine, reads.runs, dag_id=dag_id)
        if (run := run_of(row["run_id"], row["logical_date"], row["state"])) is not None and run.logical_date >= since
    ]
    new = [pair for pair in pairs(airflow.runs(dag_id, since), ours) if (dag_id, pair[1].run_id) not in done]
    done |= {(dag_id, own.run_id) for _, own in new}
    found: list[Difference] = []
    for run, own in new:
        rows = transact(engine, reads.task_instances, dag_id, own.run_id)
        states = {(row["task_id"], row["map_index"]): None if row["state"] == MISSING else row["state"] for row in rows}
        found += differences(dag_id, (run, own), airflow.states(dag_id, run.run_id), states)
    return found


def run_of(run_id: str, logical_date: str | datetime | None, state: str) -> Run | None:
    """A run; None if it has no logical date or is not finished, since it cannot be compared."""
    moment = datetime.fromisoformat(logical_date) if isinstance(logical_date, str) else logical_date
    return Run(run_id, moment.astimezone(UTC), state) if moment is not None and state in FINISHED else None


def pairs(theirs: Iterable[Run], ours: Iterable[Run]) -> list[tuple[Run, Run]]:
    """The runs that both systems have finished, by logical date."""
    by_date = {run.logical_date: run for run in ours}
    return [(run, by_date[run.logical_date]) for run in theirs if run.logical_date in by_date]


def differences(dag_id: str, pair: tuple[Run, Run], theirs: States, ours: States) -> Iterator[Difference]:
    """The differences between the states of a run in Airflow and in Paceline."""
    run, own = pair
    if run.state != own.state:
        yield Difference(dag_id, run.logical_date, "", -1, run.state, own.state)
    for task_id, map_index in sorted(theirs.keys() | ours.keys()):
        key = (task_id, map_index)
        if theirs.get(key) != ours.get(key):
            yield Difference(dag_id, run.logical_date, task_id, map_index, theirs.get(key), ours.get(key))


def _quoted(name: str) -> str:
    return quote(name, safe="")
