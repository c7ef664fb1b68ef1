"""Operators that ask a person and continue with the answer ("human in the loop").

The request is in the state store of the task instance under REQUEST. The REST API, and through it the page "Required actions",
stores the answer there under RESPONSE. While it waits, a task holds neither a worker nor slots: it looks for the answer every
POLL_S seconds.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack
from urllib.parse import urlsplit

from paceline.authoring import params as params_
from paceline.authoring.deferral import TaskRescheduled
from paceline.authoring.operator import Operator
from paceline.authoring.state_store import NEVER_EXPIRE
from paceline.authoring.task_arguments import TaskArguments
from paceline.exceptions import PacelineError
from paceline.operators.branch import BranchMixIn, SkipMixin

#: Not below paceline, whose records a worker writes to its own log.
log = logging.getLogger(__name__)

REQUEST, RESPONSE = "hitl_request", "hitl_response"
#: Under this key with the number of an earlier try: its request, and the answer or None.
EARLIER = "hitl_try_{}"
POLL_S = 10.0
#: The user of a default answer, after the timeout.
NOBODY = {"id": "Fallback to defaults", "name": "Fallback to defaults"}


class HITLTriggerEventError(PacelineError):
    """The wait for an answer ended with an error."""


class HITLTimeoutError(HITLTriggerEventError):
    """No answer came within `response_timeout`, and the task has no `defaults`."""


class HITLRejectException(PacelineError):
    """An ApprovalOperator with `fail_on_reject` was rejected."""


class HITLOperator(Operator):
    """Asks a person to choose from `options`, and waits for the answer.

    `subject` and `body` (Markdown) describe the decision; both are templates. With `multiple`, several options can be chosen.
    `params` are further inputs of the answer, see Param. Without an answer within `response_timeout` (a timedelta), the
    `defaults`, one option or a list, are the answer; without them the try fails with HITLTimeoutError. `notifiers`, one or a list,
    are called once when the task begins to wait. `assigned_users`, dicts with id and name, are the only users who may answer.

    A person answers on the page "Required actions", or with the REST API: PATCH .../taskInstances/<task>/<map index>/hitlDetails
    with {"chosen_options": ["yes"], "params_input": {}}; the map index is -1 unless the task is mapped. An answer that does not fit
    is rejected.
    The result of the task is a dict with chosen_options, params_input, responded_at and responded_by_user. DagError if an argument
    is wrong.
    """

    template_fields: Sequence[str] = ("subject", "body")

    def __init__(
        self,
        *,
        subject: str,
        options: Iterable[str],
        body: str | None = None,
        defaults: str | Iterable[str] | None = None,
        multiple: bool = False,
        notifiers: Any = None,
        assigned_users: Mapping[str, str] | Iterable[Mapping[str, str]] | None = None,
        response_timeout: timedelta | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        if response_timeout is None:
            # As in Airflow, where it limited the wait earlier.
            response_timeout = kwargs.pop("execution_timeout", None)
        # Not the params of the task: a person gives their values.
        form = kwargs.pop("params", None)
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.subject = self.text_or_result("subject", subject)
        self.body = body
        self.options = checks.texts("options", options)
        given = [defaults] if isinstance(defaults, str) else defaults
        self.defaults = None if given is None else checks.texts("defaults", given)
        self.multiple = checks.boolean("multiple", multiple)
        self.form = params_.authored(form or {}, checks)
        self.notifiers = list(notifiers) if isinstance(notifiers, list | tuple) else [] if notifiers is None else [notifiers]
        users = [assigned_users] if isinstance(assigned_users, Mapping) else assigned_users or ()
        self.assigned_users = [dict(user) for user in users]
        self.response_timeout = None if response_timeout is None else checks.duration("response_timeout", response_timeout)
        if not self.options:
            raise checks.refuse("options must not be empty.")
        if unknown := set(self.defaults or ()) - set(self.options):
            raise checks.refuse(f"defaults {sorted(unknown)} are not in options {self.options}.")
        if len(self.defaults or ()) > 1 and not self.multiple:
            raise checks.refuse("defaults has several options, but only one can be chosen; write multiple=True.")

    def execute(self, context: Mapping[str, Any]) -> object:
        store, ti = context["task_state_store"], context["ti"]
        if ti.resume is None:
            self._keep_earlier(store, ti.try_number)
            # An answer to an earlier try is not one to this.
            store.delete(RESPONSE)
            asked = {"try_number": ti.try_number, "asked_at": ti.now().isoformat()}
            if self.response_timeout is not None:
                asked["respond_by"] = (ti.start_date + self.response_timeout).isoformat()
            store.set(REQUEST, self.request() | asked, retention=NEVER_EXPIRE)
            for notifier in self.notifiers:
                notifier(context)
            log.info("Waiting for an answer: %s", self.subject)
        answer = store.get(RESPONSE)
        if answer is not None and (complaint := self.complaint(answer)):
            log.warning("The answer %r is dropped: %s", answer, complaint)
            store.delete(RESPONSE)
            answer = None
        if answer is None:
            answer = self._unanswered((ti.now() - ti.start_date).total_seconds())
        return self.finish(context, {
            "chosen_options": list(answer["chosen_options"]), "params_input": dict(answer.get("params_input") or {}),
            "responded_at": answer.get("responded_at") or ti.now().isoformat(),
            "responded_by_user": answer.get("responded_by_user"),
        })  # fmt: skip

    def finish(self, context: Mapping[str, Any], answer: dict[str, Any]) -> object:
        """Act on an answer; returns the result of the task."""
        return answer

    def request(self) -> dict[str, Any]:
        """The request as it is stored."""
        return {
            "subject": self.subject, "body": self.body, "options": self.options, "defaults": self.defaults,
            "multiple": self.multiple, "params": params_.spec(self.form), "assigned_users": self.assigned_users,
            "params_order": list(self.form),  # the database does not keep the order of keys
        }  # fmt: skip

    def complaint(self, answer: Any) -> str:
        """The fault of an answer; empty if it has none."""
        if not isinstance(answer, Mapping) or not isinstance(answer.get("chosen_options"), list) or not answer["chosen_options"]:
            return "it must be an object with a list chosen_options."
        chosen, given = answer["chosen_options"], answer.get("params_input") or {}
        if unknown := [option for option in chosen if option not in self.options]:
            return f"{unknown} are not in the options {self.options}."
        if len(chosen) > 1 and not self.multiple:
            return "only one option can be chosen."
        if not isinstance(given, Mapping):
            return "params_input must be an object."
        return params_.fault(params_.spec(self.form), given) or ""

    def _keep_earlier(self, store: Any, try_number: int) -> None:
        """Keep what an earlier try asked, with its answer."""
        request = store.get(REQUEST)
        earlier = request.get("try_number") if isinstance(request, Mapping) else None
        if isinstance(earlier, int) and earlier < try_number:
            answered = {"request": request, "answer": store.get(RESPONSE)}
            store.set(EARLIER.format(earlier), answered, retention=NEVER_EXPIRE)

    def _unanswered(self, waited_s: float) -> dict[str, Any]:
        """The defaults after the timeout. TaskRescheduled before it; HITLTimeoutError if there are no defaults."""
        left_s = POLL_S if self.response_timeout is None else self.response_timeout.total_seconds() - waited_s
        if left_s > 0:
            raise TaskRescheduled(min(POLL_S, left_s), {"waits": True})
        if self.defaults is None:
            raise HITLTimeoutError(f"{self.subject!r} got no answer within {self.response_timeout}; give defaults, or more time.")
        filled = {name: param.value for name, param in self.form.items() if param.has_value}
        return {"chosen_options": self.defaults, "params_input": filled, "responded_by_user": NOBODY}

    def generate_link_to_ui(self, *, task_instance: Any, base_url: str | None = None, **_: Any) -> str:
        """The address of the page of the task instance, below `base_url` if that is given; the other arguments have no effect."""
        page = str(task_instance.log_url)
        return page if base_url is None else f"{base_url.rstrip('/')}{urlsplit(page).path}"

    @staticmethod
    def generate_link_to_ui_from_context(*, context: Mapping[str, Any], **options: Any) -> str:
        """`generate_link_to_ui` for the task in `context`."""
        task: HITLOperator = context["task"]
        return task.generate_link_to_ui(task_instance=context["ti"], **options)


class ApprovalOperator(HITLOperator, SkipMixin):
    """Asks a person to approve or reject.

    "Reject" skips the direct downstream tasks, or all below with `ignore_downstream_trigger_rules`. With `fail_on_reject`, the try
    fails instead. Teardowns are never skipped. The other arguments are those of HITLOperator, without `options` and `multiple`.
    """

    APPROVE, REJECT = "Approve", "Reject"

    def __init__(
        self, *, subject: str, ignore_downstream_trigger_rules: bool = False, fail_on_reject: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(subject=subject, **{**kwargs, "options": [self.APPROVE, self.REJECT]})
        checks = self.argument_checks()
        for name in ("options", "multiple"):
            if name in kwargs:
                raise checks.refuse(f"an ApprovalOperator has no {name}; write HITLOperator.")
        self.ignore_downstream_trigger_rules = checks.boolean("ignore_downstream_trigger_rules", ignore_downstream_trigger_rules)
        self.fail_on_reject = checks.boolean("fail_on_reject", fail_on_reject)

    def finish(self, context: Mapping[str, Any], answer: dict[str, Any]) -> object:
        if answer["chosen_options"] == [self.APPROVE]:
            return answer
        if self.fail_on_reject:
            raise HITLRejectException(f"{self.subject!r} was rejected.")
        below = self.get_flat_relatives() if self.ignore_downstream_trigger_rules else self.get_direct_relatives()
        if skipped := [task for task in below if not task.is_teardown]:
            self.skip(context["ti"], skipped)
        return answer


class HITLBranchOperator(HITLOperator, BranchMixIn):
    """Asks a person which tasks run next: `options` are task IDs, or keys of `options_mapping`, which maps them to task IDs.

    The other direct downstream tasks are skipped. The other arguments are those of HITLOperator.
    """

    def __init__(
        self, *, subject: str, options: Iterable[str], options_mapping: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(subject=subject, options=options, **kwargs)
        self.options_mapping: dict[str, Any] = self.argument_checks().mapping("options_mapping", options_mapping or {})
        if unknown := sorted(self.options_mapping.keys() - set(self.options)):
            raise self.argument_checks().refuse(f"options_mapping has {unknown}, which are not in options {self.options}.")

    def finish(self, context: Mapping[str, Any], answer: dict[str, Any]) -> object:
        return self.do_branch(context, [self.options_mapping.get(option, option) for option in answer["chosen_options"]])


class HITLEntryOperator(HITLOperator):
    """Asks a person for the values of `params`. The only option, and the default, is "OK"; `options` has others."""

    OK = "OK"

    def __init__(self, *, subject: str, options: Iterable[str] | None = None, **kwargs: Any) -> None:
        if options is None:
            kwargs = {"defaults": [self.OK], **kwargs}
        super().__init__(subject=subject, options=[self.OK] if options is None else options, **kwargs)
