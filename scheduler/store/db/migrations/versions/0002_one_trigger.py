"""One trigger on task_instance in place of a CHECK and three triggers with conditions."""

import re
from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
#: Processes of 0001 write the same rows, and get the same events and notices for them.
compatible_from = "0001"

FUNCTIONS = ("task_instance_complete", "task_instance_logged", "event_actor", "log_task", "note_task", "refuse_foreign_process")
TRIGGERS = ("task_instance_event", "task_instance_notice", "task_instance_process")


def upgrade() -> None:
    _execute(_own())


def downgrade() -> None:
    """Return to the functions and triggers of the baseline, which never changes. The rows fulfill the CHECK already."""
    baseline = Path(__file__).with_name("0001_baseline.sql").read_text(encoding="utf-8")
    functions = [_found(rf"^create function {name}\(.*?\n?end \$\$;$", baseline) for name in FUNCTIONS]
    check = _found(r"^    constraint task_instance_complete check .*?\)\)$", baseline).strip()
    _execute(
        "drop trigger task_instance_changed on task_instance; drop trigger task_instance_made on task_instance;"
        "drop function task_instance_changed(), refuse_incomplete(task_instance);",
        *(function.replace("create function", "create or replace function", 1) for function in functions),
        "revoke execute on function log_task(), note_task(), refuse_foreign_process() from public;",
        # Not checked again: that would read the whole table under an exclusive lock.
        f"alter table task_instance add {check} not valid;",
        *(_found(rf"^create trigger {name} .*?;$", baseline) for name in TRIGGERS),
        *(f"comment on index {name} is null;" for name in re.findall(r"comment on index (\w+)", _own())),
    )


def _own() -> str:
    return Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found is not None, pattern
    return found.group()


def _execute(*statements: str) -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql("\n".join(statements).replace("{schema}", schema))
