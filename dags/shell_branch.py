"""Branching with Bash tasks: a branch that does not apply skips itself, and the join runs if one branch ran."""

from paceline import DAG
from paceline.operators import BashOperator

with DAG("shell_branch", schedule=None, tags=["example"], doc_md=__doc__):
    count = BashOperator(task_id="count", bash_command="echo $(( $(date +%s) % 100 ))")
    # Exit code 99 means skipped, not failed.
    even = BashOperator(
        task_id="even",
        bash_command="(( {{ ti.xcom_pull(task_ids='count') }} % 2 == 0 )) || exit 99; echo an even second",
    )
    odd = BashOperator(
        task_id="odd",
        bash_command="(( {{ ti.xcom_pull(task_ids='count') }} % 2 == 1 )) || exit 99; echo an odd second",
    )
    always = BashOperator(task_id="always", bash_command="echo in any second")
    join = BashOperator(
        task_id="join",
        bash_command="echo done in run {{ run_id }}",
        trigger_rule="none_failed_min_one_success",
    )

    count >> [even, odd, always] >> join
