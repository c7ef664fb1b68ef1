"""Emails on failure and retry, received by a real SMTP server."""

import email
import email.policy
from collections.abc import Callable, Iterator
from email.message import EmailMessage

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.services.notify import Notify
from scheduler.settings.model import shown

TASK = {"email": ("a@example.org", "b@example.org"), "notify": ("email_failure", "email_retry")}


class Inbox:
    """The emails that a server received; responses of `refusals` come first."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.to: list[list[str]] = []
        self.refusals: list[str] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.refusals:
            return self.refusals.pop(0)
        assert isinstance(envelope.content, bytes)
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.mails.append(message)
        self.to.append(envelope.rcpt_tos)
        return "250 taken"

    def authenticate(self, server: object, session: object, envelope: object, mechanism: object, data: object) -> AuthResult:
        self.logins.append((data.login, data.password))  # type: ignore[attr-defined]
        # Not handled: the server itself responds with 535.
        return AuthResult(success=data.password == b"geheim", handled=False)  # type: ignore[attr-defined]


class Server(Controller):
    """Listens on any free port, which `port` holds after the start."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        super()._trigger_server()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def server(inbox: Inbox) -> Iterator[Controller]:
    controller = Server(inbox, hostname="127.0.0.1", port=0, authenticator=inbox.authenticate, auth_require_tls=False)
    controller.start()
    yield controller
    if controller._thread is not None:
        controller.stop()


@pytest.fixture
def scenario(make_scenario: Callable[..., Scenario], server: Controller) -> Scenario:
    return make_scenario(smtp={"host": server.hostname, "port": server.port, "mail_from": "Paceline <p@example.org>"})


def send(scenario: Scenario, expected: Callable[[], object]) -> None:
    def turn() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return not scenario.schedulers[0].service(Notify).busy and bool(expected())

    eventually(turn, timeout=20, message=lambda: str(notices(scenario)))


def notices(scenario: Scenario) -> list[tuple[object, ...]]:
    return scenario.rows("select kind, attempts, ended_at is not null, error from notice order by id")


def fail(scenario: Scenario, *endings: TaskState, **task: object) -> None:
    scenario.triggered(dag("d", {"a": []}, task=TASK | {"retries": len(endings) - 1} | task), run_id="r")
    outcomes = iter(endings)
    scenario.run_to_end(outcome=lambda _: next(outcomes))


def test_a_retry_and_a_failure_give_one_mail_each(scenario: Scenario, inbox: Inbox) -> None:
    fail(scenario, TaskState.UP_FOR_RETRY, TaskState.FAILED)

    send(scenario, lambda: len(inbox.mails) == 2)

    assert [mail["Subject"] for mail in inbox.mails] == [
        "[Paceline] d.a (run r, try 1) will be tried again",
        "[Paceline] d.a (run r, try 2) failed",
    ]
    assert inbox.to == [["a@example.org", "b@example.org"]] * 2
    assert inbox.mails[0]["To"] == "a@example.org, b@example.org"
    assert inbox.mails[0]["From"] == "Paceline <p@example.org>"
    body = inbox.mails[1].get_content()
    for line in (
        "DAG: d",
        "Task: a",
        "Run: r",
        "Try: 2 of 2",
        "State: failed",
        f"Log: {scenario.settings.logs_folder}/d/r/a/try-2.log",
    ):
        assert line in body.splitlines()
    assert notices(scenario) == [("email_retry", 1, True, None), ("email_failure", 1, True, None)]


def test_a_success_gives_none(scenario: Scenario, inbox: Inbox) -> None:
    fail(scenario, TaskState.SUCCESS)

    assert notices(scenario) == []


def test_an_email_is_repeated_to_a_busy_server_with_the_same_message_id(scenario: Scenario, inbox: Inbox) -> None:
    inbox.refusals = ["451 try later", "451 try later"]
    fail(scenario, TaskState.FAILED)

    for attempt in (1, 2):
        send(scenario, lambda attempt=attempt: notices(scenario) == [("email_failure", attempt, False, None)])
        assert scenario.rows("select claimed_until > clock_timestamp() + interval '30 s' from notice") == [(True,)]
        scenario.sql("update notice set claimed_until = clock_timestamp()")
    send(scenario, lambda: inbox.mails)

    assert notices(scenario) == [("email_failure", 3, True, None)]


def test_a_server_that_never_takes_it_is_given_up(scenario: Scenario, inbox: Inbox) -> None:
    inbox.refusals = ["451 try later"] * 9
    fail(scenario, TaskState.FAILED)

    def over() -> bool:
        scenario.sql("update notice set claimed_until = clock_timestamp() where claimed_by is null")
        return notices(scenario)[0][2] is True

    send(scenario, over)

    assert notices(scenario) == [("email_failure", 5, True, "451 try later")]


def test_an_email_is_repeated_to_an_unreachable_server(scenario: Scenario, server: Controller, inbox: Inbox) -> None:
    server.stop()
    fail(scenario, TaskState.FAILED)

    send(scenario, lambda: notices(scenario)[0][1] == 1)

    assert notices(scenario) == [("email_failure", 1, False, None)]


def test_a_refusal_is_recorded_and_not_repeated(scenario: Scenario, inbox: Inbox) -> None:
    inbox.refusals = ["554 no such list"]
    fail(scenario, TaskState.FAILED)

    send(scenario, lambda: notices(scenario)[0][2])

    assert notices(scenario) == [("email_failure", 1, True, "554 no such list")]


def test_an_address_that_is_none_stops_no_other_mail(scenario: Scenario, inbox: Inbox) -> None:
    fail(scenario, TaskState.UP_FOR_RETRY, TaskState.FAILED, email=("a\nb",))

    send(scenario, lambda: all(row[2] for row in notices(scenario)))

    assert [bool(row[3]) for row in notices(scenario)] == [True, True]


@pytest.mark.parametrize(("password", "error"), [("geheim", None), ("falsch", "535")])
def test_a_login_is_made_if_there_is_a_user(
    make_scenario: Callable[..., Scenario], server: Controller, inbox: Inbox, password: str, error: str | None
) -> None:
    scenario = make_scenario(smtp={"host": server.hostname, "port": server.port, "user": "u", "password": password})
    fail(scenario, TaskState.FAILED)

    send(scenario, lambda: notices(scenario)[0][2])

    assert inbox.logins[0] == (b"u", password.encode())
    assert bool(inbox.mails) == (error is None)
    assert error is None or str(notices(scenario)[0][3]).startswith(error)


def test_without_a_host_the_notice_fails_with_the_reason_and_one_log_line(
    make_scenario: Callable[..., Scenario], caplog: pytest.LogCaptureFixture
) -> None:
    scenario = make_scenario()
    fail(scenario, TaskState.UP_FOR_RETRY, TaskState.FAILED)

    send(scenario, lambda: all(row[2] for row in notices(scenario)))

    assert [row[3] for row in notices(scenario)] == ["smtp.host is not set"] * 2
    assert caplog.text.count("smtp.host is not set") == 1


def test_the_password_is_never_shown() -> None:
    assert shown("smtp.password", "geheim") == "***"
