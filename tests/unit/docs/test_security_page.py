"""docs/explanation/security.md: for every sentence about a forbidden action, this file names the test that attempts it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/explanation/security.md"
REAL, UNIT = "tests/integration", "tests/unit"
ATTACKS, ROLE, SCHEDULER = (f"{REAL}/security/test_{name}.py" for name in (
    "attacks_of_the_worker_role", "worker_role", "scheduler_role"))  # fmt: skip
SECRETS = f"{REAL}/security/test_secrets_of_processes.py"
REMOTE = MESSAGES = f"{REAL}/workers/celery_worker/test_hostile_messages.py"

#: A part of the sentence, and the tests that try it.
TRIED: dict[str, list[tuple[str, str]]] = {
    "no URL, no key, no `PACELINE_CONN_*`": [
        (f"{REAL}/dagfiles/test_bad_files.py", "test_a_file_sees_no_password_and_where_home_is"),
        (f"{REAL}/services/test_notices.py", "test_a_callback_sees_no_password_and_may_not_push"),
        (f"{REAL}/workers/process/test_surroundings.py", "test_user_code_sees_its_home_and_no_passwords"),
        (f"{REAL}/security/test_secrets_of_processes.py", "test_a_stack_shows_its_secrets_nowhere"),
        (f"{UNIT}/process/test_hardening.py", "test_user_code_that_only_parses_gets_no_secret_of_ours_and_none_of_libpq"),
    ],
    "Flower has no database URL": [
        (f"{REAL}/embedded/test_stack.py", "test_the_environment_of_each_process_has_no_secrets_of_other_processes")
    ],
    "or change what it has audited": [(f"{REAL}/api/test_web.py", "test_the_role_of_web_processes_may_do_no_more")],
    "`paceline db grant-worker`, nothing else": [
        (f"{REAL}/embedded/test_stack.py", "test_the_environment_of_each_process_has_no_secrets_of_other_processes"),
        ("tests/compose/test_front_matter.py", "test_each_service_gets_the_passwords_that_it_needs_and_no_others"),
    ],
    "keeps no process from starting": [
        (
            f"{REAL}/security/test_found_by_fuzzing.py",
            "test_after_hostile_writes_of_a_worker_processes_start_runs_continue_and_commands_print_one_sentence",
        )
    ],
    "Migrating never changes the password": [(ROLE, "test_migrating_makes_the_role_of_the_url_with_its_password")],
    "their role cannot change the schema": [(SCHEDULER, "test_it_may_change_every_row_and_nothing_of_the_schema")],
    "cannot delete a run": [(ROLE, "test_the_role_has_no_rights_that_it_does_not_need")],
    "cannot read notices": [(ROLE, "test_the_role_has_no_rights_that_it_does_not_need")],
    "cannot create tables": [
        (ATTACKS, "test_it_may_make_nothing_that_a_name_could_be_looked_up_in"),
        (ATTACKS, "test_a_type_of_its_own_does_not_run_its_code_as_the_owner"),
    ],
    "have a fixed `search_path`": [
        (ATTACKS, "test_every_function_that_acts_as_its_owner_looks_names_up_in_our_schema_alone"),
        (ATTACKS, "test_it_cannot_make_our_functions_triggers_of_its_own"),
    ],
    "cannot choose the actor": [
        (ATTACKS, "test_its_application_name_does_not_put_the_name_of_another_process_into_events"),
        (ATTACKS, "test_it_cannot_turn_events_off"),
        (ATTACKS, "test_no_change_of_a_state_slips_by_as_a_step_on_the_way"),
    ],
    "so it cannot look like a person or a role": [(ATTACKS, "test_it_registers_no_process_under_the_name_of_a_person_or_a_role")],
    "count only for roles that may write the table `event`": [(ATTACKS, "test_it_cannot_turn_events_off")],
    "cannot register, change or stop a scheduler": [
        (ATTACKS, "test_it_registers_and_stops_no_scheduler"),
        (ATTACKS, "test_events_of_the_role_name_only_its_own_processes"),
    ],
    "is rejected as a worker's role": [
        (ROLE, "test_a_superuser_is_no_role_for_a_worker"),
        (ROLE, "test_a_role_that_reaches_past_its_grants_is_no_role_for_a_worker"),
    ],
    "Only the owner of the database can revoke": [
        (SCHEDULER, "test_doctor_names_the_rights_that_only_the_owner_of_the_database_can_revoke")
    ],
    "does not start without it": [
        ("tests/compose/test_front_matter.py", "test_compose_requires_every_password_and_the_example_names_every_variable")
    ],
    "no process creates a key": [(f"{REAL}/cli/test_secrets.py", "test_no_key_is_generated_for_a_shared_database")],
    "its key cannot decrypt": [(f"{REAL}/cli/test_secrets.py", "test_doctor_names_the_values_that_its_key_cannot_decrypt")],
    "can read neither `/proc/<pid>/environ`": [
        (SECRETS, "test_a_process_of_the_same_user_sees_neither_environment_nor_memory"),
        (SECRETS, "test_no_process_of_a_stack_can_be_read_by_a_program_of_its_user"),
    ],
    "none can open the pipes of another one": [(SECRETS, "test_no_process_of_a_stack_can_be_read_by_a_program_of_its_user")],
    "also overwrite the secrets": [(SECRETS, "test_a_stack_shows_its_secrets_nowhere")],
    "have mode 0711": [("tests/compose/run.py", "check_secrets")],
    "Logs have mode 0640": [(f"{UNIT}/workers/process/test_logs.py", "test_only_the_user_and_its_group_read_a_log")],
    "which only the user of the stack can open": [
        (f"{REAL}/embedded/test_servers.py", "test_nothing_listens_on_the_network_and_commits_reach_the_disk"),
        (f"{REAL}/embedded/test_servers.py", "test_a_private_folder_is_open_to_its_owner_only"),
    ],
    "is killed after its time limit": [
        (f"{REAL}/dagfiles/test_bad_files.py", "test_a_bad_file_is_an_import_error_and_the_good_file_beside_it_is_stored"),
        (f"{REAL}/dagfiles/test_hostile_answers.py", "test_a_file_that_stops_the_process_that_reads_all_files_is_found_and_blamed"),
    ],
    "1,024 open files": [
        (f"{REAL}/dagfiles/test_process_tree.py", "test_a_file_may_not_open_or_write_without_end"),
        (f"{REAL}/dagfiles/test_process_tree.py", "test_a_user_may_start_only_so_many_more_processes"),
        (f"{REAL}/dagfiles/test_bad_files.py", "test_a_bad_file_is_an_import_error_and_the_good_file_beside_it_is_stored"),
    ],
    "all processes it started are killed": [
        (f"{REAL}/dagfiles/test_process_tree.py", "test_a_process_that_leaves_its_group_and_session_ends_with_the_file"),
        (f"{REAL}/dagfiles/test_process_tree.py", "test_the_scheduler_ends_the_children_of_a_killed_template_process"),
        (f"{REAL}/services/test_notice_failures.py", "test_processes_that_a_callback_leaves_behind_end_with_its_file"),
    ],
    "or the failure of that callback": [
        (
            f"{REAL}/services/test_notice_failures.py",
            "test_each_is_the_failure_of_its_callback_and_a_good_callback_is_called_once",
        )
    ],
    "nobody else gets access": [
        (f"{REAL}/embedded/test_servers.py", "test_an_entry_for_one_user_gives_other_users_no_rights_that_the_mask_withheld")
    ],
    "No password appears": [
        (f"{REAL}/security/test_secrets_of_processes.py", "test_a_stack_shows_its_secrets_nowhere"),
        (f"{REAL}/security/test_secrets_of_processes.py", "test_errors_about_urls_hold_no_password"),
    ],
    "trusts nothing that such a process returns": [
        (f"{REAL}/dagfiles/test_hostile_answers.py", "test_every_answer_but_a_valid_one_is_an_import_error_of_its_file")
    ],
    "If the certificate of a server cannot be verified, a process exits with code 4": [
        (f"{REAL}/security/test_broker_roles.py", "test_a_database_that_cannot_be_trusted_ends_the_command_with_4"),
        (f"{REAL}/security/test_broker_roles.py", "test_no_process_waits_for_a_certificate_to_become_right"),
    ],
    "None of them may run a script": [(f"{REAL}/security/test_broker_roles.py", "test_a_role_may_not")],
    "It cannot send remote control": [(f"{REAL}/security/test_broker_roles.py", "test_a_role_may_not")],
    "so the vulnerabilities CVE": [(f"{REAL}/security/test_broker_roles.py", "test_the_user_of_the_embedded_server_may_not")],
    "and no others ([submitted": [
        (f"{REAL}/workers/spark/test_spark_submit.py", "test_the_master_refuses_requests_that_its_password_did_not_sign")
    ],
    "which schedulers then publish again": [(f"{REAL}/security/test_broker_roles.py", "test_everything_works_under_the_roles")],
    "All four are fixed in its version": [
        (f"{REAL}/embedded/test_servers.py", "test_nothing_listens_on_the_network_and_commits_reach_the_disk")
    ],
    "with mode 0600, unless": [
        (f"{UNIT}/embedded/test_flower_login.py", "test_a_home_has_one_login_for_its_owner_alone"),
        (f"{UNIT}/embedded/test_flower_login.py", "test_a_login_from_the_environment_is_left_alone"),
    ],
    "(DNS rebinding) gets status 421": [
        (f"{UNIT}/workers/flower/test_access.py", "test_a_name_that_could_be_rebound_is_refused"),
        (f"{REAL}/cli/test_flower.py", "test_flower_shows_tasks_as_dag_and_task_with_their_run"),
    ],
    "and static files require no login": [
        (f"{REAL}/cli/test_flower.py", "test_with_a_login_only_metrics_health_and_static_files_answer_without_it")
    ],
    "The port is not published": [
        ("tests/compose/test_front_matter.py", "test_only_pages_and_flower_are_published_and_only_on_this_machine"),
        ("tests/compose/test_front_matter.py", "test_each_service_gets_the_passwords_that_it_needs_and_no_others"),
    ],
    "further messages are only counted": [(MESSAGES, "test_lines_about_refused_messages_are_few")],
    "renames it to `paceline:aside:<key>` for a week": [
        (f"{REAL}/messaging/test_wakeups.py", "test_a_queue_whose_key_is_no_list_still_gets_its_messages"),
        (f"{REAL}/security/test_broker_roles.py", "test_a_user_without_the_right_to_rename_deletes_a_key_of_another_type"),
    ],
    "the reply goes only to the mailbox of the sender": [
        (REMOTE, "test_a_malformed_request_or_a_foreign_reply_address_is_refused_before_celery_sees_it")
    ],
    "`enable_events`, `disable_events`, `heartbeat`": [(REMOTE, "test_it_executes_commands_of_flower_and_answers_about_one_task")],
    "A log path has a separate folder for each ID": [
        (f"{UNIT}/workers/process/test_logs.py", "test_no_id_leaves_the_folder_or_breaks_the_file_system"),
        (f"{UNIT}/workers/process/test_logs.py", "test_two_ids_never_share_a_path"),
    ],
    "no name that begins with an underscore": [
        (f"{UNIT}/authoring/test_templates.py", "test_a_template_reaches_nothing_that_it_is_not_given")
    ],
    "No command may print a traceback": [
        (f"{REAL}/security/test_found_by_fuzzing.py", "test_nothing_but_a_sentence_comes_of"),
        (f"{REAL}/security/test_found_by_fuzzing.py", "test_processes_survive_and_work_with_any_garbage_in_redis"),
    ],
    "A worker drops everything else": [(MESSAGES, "test_each_is_refused_before_celery_sees_it")],
    "so the claim finds nothing": [(MESSAGES, "test_a_good_message_for_nothing_is_dropped_by_the_claim")],
    "is dropped and counted": [
        (f"{REAL}/messaging/test_wakeups.py", "test_tokens_that_no_process_of_paceline_sends_are_dropped_and_counted")
    ],
    "`revoke`, `terminate`": [
        (REMOTE, "test_a_worker_answers_inspections_refuses_commands_survives_garbage_and_shuts_down_cleanly"),
        (REMOTE, "test_a_task_that_celery_should_revoke_runs"),
        (REMOTE, "test_every_refusal_names_the_alternative"),
    ],
    "a test holds the code to it": [
        (f"{UNIT}/repository/test_statements.py", "test_statements_hold_constants_and_parameters_alone")
    ],
    "is not made of dots alone": [
        (f"{REAL}/security/test_found_by_fuzzing.py", "test_a_run_id_that_names_another_folder_is_refused")
    ],
}
#: Sentences with "cannot" and the like that promise nothing: advice, and limits of the protection.
NO_PROMISE = (
    "a task can also delete", "you open in a container", "Let workers run as another user",
    "For any other role", "if migrating could not do that", "all others",
    "shuts down cleanly", "`pool_grow`", "`add_consumer`", "`pool_restart`", "`rate_limit`",
)  # fmt: skip
PROMISES = re.compile(r"\b(?:cannot|can neither|may not|None of them may|[Nn]obody else|rejected as|never changes|rejects)\b")


def text() -> str:
    return re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", TRIED)
def test_the_page_has_each_sentence_that_these_tests_check(part: str) -> None:
    assert part in text()
    for file, name in TRIED[part]:
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"


def test_every_promise_of_the_page_is_tried() -> None:
    sentences = re.split(r"(?<=[.;:]) +(?=[A-Z*`|])|(?= \| `)", text())
    promises = [sentence for sentence in sentences if PROMISES.search(sentence)]
    assert len(promises) > 10
    assert [promise for promise in promises if not any(part in promise for part in (*TRIED, *NO_PROMISE))] == []
