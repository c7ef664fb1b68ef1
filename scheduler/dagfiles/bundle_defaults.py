"""The defaults of a bundle: its file bundle.toml gives its DAGs an owner, tags, a pool and a queue that they do not set."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.authoring.task_arguments import DEFAULT_POOL
from paceline.exceptions import DagError
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask

FILE = "bundle.toml"
#: The owner of a task that sets none, as in Airflow.
DEFAULT_OWNER = "airflow"

Name = Annotated[str, Field(min_length=1, max_length=250)]


class Defaults(BaseModel):
    """The keys of bundle.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: Of tasks without an owner.
    owner: Name | None = None
    #: Of tasks without a pool, and of those without a queue that do not run on Spark.
    pool: Name | None = None
    queue: Name | None = None
    #: Added to those of each DAG. A tag can give accounts a role.
    tags: list[Name] = []

    @classmethod
    def of(cls, folder: Path) -> "Defaults":
        """Those of a folder; without the file, nothing is a default. DagError if it is not valid."""
        path = folder / FILE
        if not path.exists():  # a DAG file that opened it would count as one that reads data, and be read again sooner
            return cls()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except (OSError, ValueError) as error:
            reason = str(error)
        raise DagError(f"{FILE} of the bundle is not valid: {reason}. It may have owner, pool, queue and tags.")

    def applied(self, dag: SerializedDag) -> SerializedDag:
        """The DAG with these defaults."""
        if self == Defaults():
            return dag
        tasks = tuple(self._task(task) for task in dag.tasks)
        owners = tuple(sorted({task.owner for task in tasks}))
        return replace(dag, tasks=tasks, owners=owners, tags=tuple(sorted({*dag.tags, *self.tags})))

    def _task(self, task: SerializedTask) -> SerializedTask:
        owner = self.owner if self.owner is not None and task.owner == DEFAULT_OWNER else task.owner
        is_free = task.pool == DEFAULT_POOL and task.cluster is None
        pool = self.pool if self.pool is not None and is_free else task.pool
        return replace(task, owner=owner, pool=pool, queue=task.queue or self.queue)
