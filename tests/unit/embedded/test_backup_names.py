"""The names of backup files."""

from pathlib import Path

import pytest

from paceline.exceptions import UsageError
from scheduler.embedded import backup
from scheduler.settings import Settings


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_backup_needs_the_name_of_a_file(name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a file"):
        backup.dump(Settings(), 18, Path(name))
