"""A release to come, as far as its migrations: two of them follow the newest one of this checkout."""

import shutil
from pathlib import Path

import pytest

from scheduler.store.db import migrate

#: The first one adds a table, the second one a column with an index to the largest table.
TABLE = """
def upgrade() -> None:
    op.execute("create table table_of_the_future (id bigint primary key)")

def downgrade() -> None:
    op.execute("drop table table_of_the_future")
"""
COLUMN = """
indexes = {"of_the_future_idx": "task_instance (of_the_future) where of_the_future is not null"}

def upgrade() -> None:
    op.execute("alter table task_instance add column of_the_future text")
"""
DROP_COLUMN = """
def downgrade() -> None:
    op.execute("alter table task_instance drop column of_the_future")
"""
NO_WAY_BACK = """
def downgrade() -> None:
    raise NotImplementedError("It would open doors.")
"""
MIGRATION = '''"""A migration of a version to come."""
from alembic import op
revision = "{revision}"
down_revision = "{after}"
branch_labels, depends_on = None, None
{compatible}
'''


class FutureRelease:
    """A newer version of Paceline with the schemas BEFORE and HEAD, in whose place `migrate` is between `begins` and `ends`."""

    BEFORE, HEAD = "8999", "9000"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.now = migrate.head()
        self._here = migrate.FOLDER

    def begins(self, *, compatible_from: str | None, downgrade: str = DROP_COLUMN) -> None:
        shutil.copytree(self._here, self._folder, ignore=shutil.ignore_patterns("__pycache__"))
        compatible = f'compatible_from = "{compatible_from}"' if compatible_from else ""
        after = self.now
        for revision, body in ((self.BEFORE, TABLE), (self.HEAD, COLUMN + downgrade)):
            text = MIGRATION.format(revision=revision, after=after, compatible=compatible) + body
            (self._folder / "versions" / f"{revision}_future.py").write_text(text)
            after = revision
        self._monkeypatch.setattr(migrate, "FOLDER", self._folder)

    def ends(self) -> None:
        self._monkeypatch.setattr(migrate, "FOLDER", self._here)
