"""Operators that ask a person: their questions, valid answers, and the results."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from paceline import DAG, Param
from paceline.authoring.deferral import TaskRescheduled
from paceline.exceptions import DagError
from paceline.operators import ApprovalOperator, EmptyOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator, hitl
from paceline.testing.results import RunResult
from scheduler.testing import runs

Run = Callable[..., RunResult]
SOON = timedelta(seconds=0.01)


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hitl, "POLL_S", 0.01)


def answered(kind: type[HITLOperator], answer: Any, **arguments: Any) -> HITLOperator:
    """A task of a subclass, which finds this answer when it polls for the first time."""
    answers = [answer]

    class Answered(kind):  # type: ignore[valid-type,misc]
        def execute(self, context: Any) -> object:
            store = context["task_state_store"]
            if context["ti"].resume is not None and answers:
                stored = store.get(hitl.REQUEST)
                asked = {"try_number": context["ti"].try_number, "asked_at": stored["asked_at"]}
                if self.response_timeout is not None:
                    asked["respond_by"] = (context["ti"].start_date + self.response_timeout).isoformat()
                assert stored == self.request() | asked
                store.set(hitl.RESPONSE, answers.pop())
            return super().execute(context)

    return Answered(**arguments)


def test_an_answer_is_the_result(dag_maker: Any) -> None:
    messages: list[str] = []
    with dag_maker():
        answered(HITLOperator, {"chosen_options": ["b", "c"], "responded_by_user": {"id": "1", "name": "ann"}}, task_id="choose",
                 subject="On {{ ds }}?", options=["a", "b", "c"], multiple=True,
                 notifiers=[lambda context: messages.append(context["task"].subject)])  # fmt: skip
        answered(HITLEntryOperator, {"chosen_options": ["OK"], "params_input": {"n": 3}}, task_id="enter", subject="How many?",
                 params={"n": Param(type="integer")})  # fmt: skip

    result = dag_maker.run()

    assert result.success, result.reasons
    assert result.xcoms["choose"]["chosen_options"] == ["b", "c"] and result.xcoms["choose"]["responded_by_user"]["name"] == "ann"
    assert result.xcoms["enter"]["params_input"] == {"n": 3} and result.xcoms["enter"]["responded_at"]
    assert len(messages) == 1 and messages[0].startswith("On 20")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3, "must be an object with a list chosen_options"),
        ({"chosen_options": []}, "must be an object with a list chosen_options"),
        ({"chosen_options": ["x"]}, "['x'] are not in the options ['a', 'b']"),
        ({"chosen_options": ["a", "b"]}, "only one option can be chosen"),
        ({"chosen_options": ["a"], "params_input": {"m": 1}}, "There is no param 'm': the params are n."),
        ({"chosen_options": ["a"], "params_input": {"n": "x"}}, "Param 'n' cannot be"),
        ({"chosen_options": ["a"]}, "Param 'n' needs a value"),
        ({"chosen_options": ["a"], "params_input": [1]}, "params_input must be an object"),
        ({"chosen_options": ["a"], "params_input": {"n": 1}}, ""),
    ],
)
def test_an_answer_that_does_not_fit_has_a_complaint(answer: Any, words: str) -> None:
    with DAG("d", schedule=None):
        task = HITLOperator(task_id="t", subject="s", options=["a", "b"], params={"n": Param(type="integer")})

    assert words in task.complaint(answer) and bool(words) == bool(task.complaint(answer))


def test_an_answer_that_does_not_fit_is_dropped_and_the_task_waits_on(dag_maker: Any, caplog: pytest.LogCaptureFixture) -> None:
    with dag_maker():
        answered(HITLOperator, {"chosen_options": ["x"]}, task_id="t", subject="s", options=["a"], defaults="a",
                 response_timeout=timedelta(seconds=0.1))  # fmt: skip

    result = dag_maker.run()

    assert result.xcoms["t"]["chosen_options"] == ["a"]
    assert "['x'] are not in the options" in caplog.text


def test_a_try_keeps_the_question_of_earlier_tries(dag_maker: Any) -> None:
    questions: list[Any] = []

    class Recorded(HITLOperator):
        def execute(self, context: Any) -> object:
            store = context["task_state_store"]
            if context["ti"].resume is not None and context["ti"].try_number == 1:
                store.set(hitl.RESPONSE, {"chosen_options": ["a"]})
            try:
                return super().execute(context)
            finally:
                questions.append(store.get(hitl.EARLIER.format(1)))

        def finish(self, context: Any, answer: dict[str, Any]) -> object:
            if context["ti"].try_number == 1:
                raise ValueError("try again")
            return answer

    with dag_maker():
        Recorded(task_id="t", subject="s {{ ti.try_number }}", options=["a", "b"], defaults="b", retries=1,
                 response_timeout=timedelta(seconds=0.1), retry_delay=timedelta(0))  # fmt: skip

    result = dag_maker.run(retries=True)

    assert result.success and result.xcoms["t"]["chosen_options"] == ["b"], result.reasons
    assert questions[0] is None
    assert (questions[-1]["request"]["subject"], questions[-1]["answer"]) == ("s 1", {"chosen_options": ["a"]})


def test_an_unanswered_question_fails_or_takes_its_defaults(dag_maker: Any) -> None:
    with dag_maker():
        HITLOperator(task_id="lost", subject="Now?", options=["a"], response_timeout=SOON)
        HITLEntryOperator(task_id="entry", subject="s", params={"n": 5}, response_timeout=SOON)

    result = dag_maker.run()

    assert "'Now?' got no answer within" in result.reasons["lost"]
    assert result.xcoms["entry"]["params_input"] == {"n": 5} and result.xcoms["entry"]["responded_by_user"] == hitl.NOBODY
    task = dag_maker.dag.get_task("lost")
    task.response_timeout = None
    with pytest.raises(TaskRescheduled) as waits:
        task.execute(runs.context_of(task))
    assert waits.value.delay_s == 0.01


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ({}, {"ask": "success", "near": "skipped", "far": "success"}),
        ({"ignore_downstream_trigger_rules": True}, {"ask": "success", "near": "skipped", "far": "skipped"}),
        ({"fail_on_reject": True}, {"ask": "failed", "near": "upstream_failed", "far": "success"}),
    ],
)
def test_a_rejection_skips_or_fails(dag_maker: Any, options: Any, states: Any) -> None:
    with dag_maker():
        ask = ApprovalOperator(task_id="ask", subject="s", defaults="Reject", response_timeout=SOON, **options)
        ask >> EmptyOperator(task_id="near") >> EmptyOperator(task_id="far", trigger_rule="all_done")

    assert dag_maker.run().states == states


def test_an_approval_and_a_branch_continue(dag_maker: Any) -> None:
    with dag_maker():
        ask = ApprovalOperator(task_id="ask", subject="s", defaults="Approve", response_timeout=SOON)
        branch = HITLBranchOperator(
            task_id="branch",
            subject="s",
            options=["left", "r"],
            options_mapping={"r": "right"},
            defaults="r",
            response_timeout=SOON,
        )
        ask >> branch >> [EmptyOperator(task_id="left"), EmptyOperator(task_id="right")]

    assert dag_maker.run().states == {"ask": "success", "branch": "success", "left": "skipped", "right": "success"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HITLOperator(task_id="t", subject="s", options=[]), "options must not be empty"),
        (lambda: HITLOperator(task_id="t", subject="s", options=["a"], defaults="b"), r"defaults \['b'\] are not in options"),
        (lambda: HITLOperator(task_id="t", subject="s", options=["a", "b"], defaults=["a", "b"]), "write multiple=True"),
        (lambda: ApprovalOperator(task_id="t", subject="s", options=["a"]), "an ApprovalOperator has no options"),
        (lambda: HITLBranchOperator(task_id="t", subject="s", options=["a"], options_mapping={"b": "c"}), "options_mapping has"),
        (lambda: HITLOperator(task_id="t", subject="s", options=["a"], option="x"), "unknown argument 'option'"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object], words: str) -> None:
    with DAG("d", schedule=None), pytest.raises(DagError, match=words):
        make()


def test_the_link_is_that_of_the_task_instance() -> None:
    class Ti:
        log_url = "http://own/dags/d/runs/r/tasks/t"

    with DAG("d", schedule=None):
        task = HITLOperator(task_id="t", subject="s", options=["a"])

    link = HITLOperator.generate_link_to_ui_from_context
    assert link(context={"task": task, "ti": Ti}) == Ti.log_url
    assert link(context={"task": task, "ti": Ti}, base_url="https://other/") == "https://other/dags/d/runs/r/tasks/t"
