"""Every route with every role, and the ways to log in: passwords, keys, cookies, their limits, and OpenID Connect."""

import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import event
from support.processes import free_port
from support.waiting import eventually

from scheduler.api import access, login
from scheduler.api.call import PREFIX
from scheduler.api.login import CSRF_HEADER
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact

from .conftest import PASSWORD, Web, World

#: Fewer than the threads of a web process.
GUESSES = 8
#: A value for each parameter of a path: of things that exist where reading is to succeed.
VALUES = {
    "dag_id": "etl", "dag_run_id": "good", "task_id": "extract", "map_index": "-1", "group_id": "g", "task_try_number": "1",
    "try_number": "1", "xcom_key": "return_value", "version_number": "1", "pool_name": "default_pool", "section": "core",
    "option": "parallelism", "worker": "w", "text": "x", "bundle_name": "sales",
}  # fmt: skip
#: Role of the account, or its role on the tag of the DAG alone, or on another tag.
PEOPLE: dict[str, dict[str, Any]] = {
    "viewer": {"role": "viewer"},
    "operator": {"role": "operator"},
    "admin": {"role": "admin"},
    "tag viewer": {"tags": {"nightly": "viewer"}},
    "tag operator": {"tags": {"nightly": "operator"}},
    "tag admin": {"tags": {"nightly": "admin"}},
    "other tag": {"tags": {"other": "admin"}},
    "bundle viewer": {"tags": {"bundle:sales": "viewer"}},
    "bundle operator": {"tags": {"bundle:sales": "operator"}},
}


def routes(web: Web) -> Iterator[tuple[str, str]]:
    """Method and template of each route below the prefix."""
    for path, methods in _walk(web.app.routes):
        if path.startswith(PREFIX):
            for method in methods:
                yield method, path.removeprefix(PREFIX)


def _walk(found: Any) -> Iterator[tuple[str, set[str]]]:
    for route in found:
        if isinstance(route, APIRoute):
            yield route.path, route.methods
        elif hasattr(route, "effective_candidates"):
            yield from _walk(route.effective_candidates())
        elif hasattr(route, "methods"):
            yield route.path, route.methods


def status_of(http: httpx.Client, method: str, path: str) -> int:
    """Of a request whose response may be a stream without end."""
    with http.stream(method, PREFIX + path, params={"interval": 0.1, "text": "x", "dag_ids": "etl"}) as answer:
        return answer.status_code


def expected(person: str, needs: access.Needs) -> bool:
    """Whether this person may use a route, written apart from the code."""
    ranks = {"viewer": 0, "operator": 1, "admin": 2}
    if needs.scope == "login":
        return True
    if needs.scope == "bundle":
        readers = {"viewer", "operator", "bundle viewer"} if needs.role == "viewer" else set()
        return person in {"admin", "bundle operator"} | readers
    if person in ranks:
        return ranks[person] >= ranks[needs.role]
    if needs.scope == "all":
        return False
    if person in {"other tag", "bundle viewer", "bundle operator"}:
        return needs.scope == "any" and (person != "bundle viewer" or needs.role == "viewer")
    return ranks[person.removeprefix("tag ")] >= ranks[needs.role]


def test_each_route_has_one_line_in_the_table(web: Web) -> None:
    public = {"GET /version", "GET /monitor/health"}

    found = {f"{method} {path}" for method, path in routes(web)} - public

    assert len(found) > 100
    assert found == set(access.TABLE)


def test_every_route_for_every_role(web: Web, world: World) -> None:
    """Bodies are missing, so that a change that is allowed ends with 4xx, and nothing is changed by the way."""
    wrong = []
    for person, rights in PEOPLE.items():
        with web.http(web.account(person, **rights)) as http:
            for place, needs in access.TABLE.items():
                method, _, template = place.partition(" ")
                if method == "DELETE" or template.endswith(("/favorite", "/unfavorite")):
                    continue
                path = re.sub(r"\{(\w+)(:path)?\}", lambda found: VALUES.get(found[1], "7"), template)
                status = status_of(http, method, path)
                if (status == 403) is expected(person, needs) or (status >= 500 and status != 501):
                    wrong.append((person, place, status))
    assert wrong == []
    assert world.states("good")["extract"] == "success"


def test_deletions_and_favorites_for_every_role(web: Web, world: World) -> None:
    """On things that do not exist, except the DAG, which only an administrator may delete."""
    wrong = []
    for person, rights in PEOPLE.items():
        with web.http(web.account(person, **rights)) as http:
            for place, needs in access.TABLE.items():
                method, _, template = place.partition(" ")
                if (method != "DELETE" and not template.endswith(("/favorite", "/unfavorite"))) or template == "/dags/{dag_id}":
                    continue
                path = re.sub(r"\{(\w+)(:path)?\}", lambda found: "etl" if found[1] == "dag_id" else "7", template)
                status = status_of(http, method, path)
                if (status == 403) is expected(person, needs) or (status >= 500 and status != 501):
                    wrong.append((person, place, status))
    assert wrong == []


def test_nothing_answers_without_a_login(web: Web) -> None:
    with web.http() as http:
        for method, template in routes(web):
            if f"{method} {template}" in {"GET /version", "GET /monitor/health"}:
                continue
            answer = http.request(method, PREFIX + template.replace("{", "").replace("}", "").replace(":path", ""))
            assert answer.status_code in {401, 405}, (method, template)
            assert answer.json()["detail"]
        assert http.get("/health").status_code in {200, 503}


def test_lists_have_only_rows_that_the_account_may_see(web: Web, world: World) -> None:
    with web.http(web.account("tim", tags={"nightly": "viewer"})) as http:
        get = lambda path: http.get(PREFIX + path).json()  # noqa: E731
        assert [dag["dag_id"] for dag in get("/dags")["dags"]] == ["etl"]
        assert http.get(f"{PREFIX}/dags/hourly").status_code == 403
        assert {instance["dag_id"] for instance in get("/dags/~/dagRuns/~/taskInstances")["task_instances"]} == {"etl"}
    with web.http(web.account("uma", tags={"other": "admin"})) as http:
        for path in ("/dags", "/dags/~/dagRuns", "/dags/~/dagRuns/~/taskInstances", "/dagStats", "/dagTags", "/eventLogs",
                     "/dags/~/dagRuns/~/taskInstances/~/xcomEntries", "/dags/~/dagVersions", "/importErrors",
                     "/backfills"):  # fmt: skip
            assert http.get(PREFIX + path).json()["total_entries"] == 0, path


def test_an_entry_of_a_bulk_request_needs_the_right_on_its_own_dag(web: Web, world: World) -> None:
    world.scenario.trigger("hourly", run_id="theirs")
    entity = {"dag_id": "hourly", "dag_run_id": "theirs", "task_id": "t000", "new_state": "failed"}
    with web.http(web.account("tim", tags={"nightly": "operator"})) as http:
        for path in ("etl/dagRuns/good", "~/dagRuns/~"):
            body = {"actions": [{"action": "update", "entities": [entity]}]}
            found = http.patch(f"{PREFIX}/dags/{path}/taskInstances", json=body).json()["update"]
            assert found["success"] == [] and [error["status_code"] for error in found["errors"]] == [403], path
        body = {"actions": [{"action": "delete", "entities": [{"dag_id": "hourly", "dag_run_id": "theirs"}]}]}
        assert http.patch(f"{PREFIX}/dags/~/dagRuns", json=body).json()["delete"]["errors"][0]["status_code"] == 403
    assert world.state("theirs") == "queued" and world.states("theirs")["t000"] in {"none", "scheduled"}


def test_a_password_gives_a_token_until_it_changes(web: Web) -> None:
    web.account("ada", "admin")
    with web.http() as http:
        answer = http.post("/auth/token", json={"username": "ADA", "password": PASSWORD})
        token = answer.json()["access_token"]
        assert answer.status_code == 201
        headers = {"Authorization": f"Bearer {token}"}
        assert http.get(f"{PREFIX}/me", headers=headers).json()["username"] == "ada"
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        forged = login.sign(claims, b"another secret of at least 32 bytes")
        assert http.get(f"{PREFIX}/me", headers={"Authorization": f"Bearer {forged}"}).status_code == 401

        transact(web.engine, accounts.set_password, "ada", "a new password")

        assert http.get(f"{PREFIX}/me", headers=headers).status_code == 401
        assert http.post("/auth/token", json={"username": "ada", "password": PASSWORD}).status_code == 401


def test_keys_are_stored_as_digests_and_end(web: Web) -> None:
    token = web.account("ada", "admin")
    with web.engine.connect() as connection:
        rows = connection.exec_driver_sql("select digest, password_hash from account_key, account").all()
    assert all(token.encode() not in bytes(digest) for digest, _ in rows)
    assert all(hash_.startswith("$argon2id$") for _, hash_ in rows)
    with web.http(token) as http, web.engine.begin() as connection:
        assert http.get(f"{PREFIX}/me").status_code == 200
        connection.exec_driver_sql("update account_key set expires_at = clock_timestamp()")
        connection.commit()
        assert http.get(f"{PREFIX}/me").status_code == 401


def test_a_session_cookie_needs_its_csrf_token_to_change_anything(web: Web, world: World) -> None:
    web.account("ada", "admin")
    with web.http() as http:
        session = http.post("/auth/login", json={"username": "ada", "password": PASSWORD})
        cookies = session.headers.get_list("set-cookie")
        assert "httponly" in cookies[0].lower() and "samesite=lax" in cookies[0].lower()
        assert http.get(f"{PREFIX}/me").json()["role"] == "admin"

        def pause(**headers: str) -> int:
            return http.patch(f"{PREFIX}/dags/etl", json={"is_paused": True}, headers=headers).status_code

        assert pause() == 403
        assert pause(**{CSRF_HEADER: "0" * 64}) == 403
        assert pause(**{CSRF_HEADER: session.json()["csrf_token"]}) == 200
        assert http.post("/auth/logout").status_code == 403
        assert http.post("/auth/logout", headers={CSRF_HEADER: session.json()["csrf_token"]}).status_code == 204
        assert http.get(f"{PREFIX}/me").status_code == 401


def test_logins_are_limited_over_all_web_processes(make_web: Callable[..., Web]) -> None:
    first, second = make_web(login_attempts=3), make_web(login_attempts=3)
    first.account("ada", "admin")

    def log_in(web: Web, password: str = "wrong", name: str = "ada") -> httpx.Response:
        return httpx.post(f"{web.url}/auth/token", json={"username": name, "password": password})

    assert [log_in(web).status_code for web in (first, second, first)] == [401, 401, 401]
    blocked = log_in(second, PASSWORD)
    assert blocked.status_code == 429 and int(blocked.headers["retry-after"]) > 0
    assert log_in(first, name="nobody").status_code == 401
    with first.engine.begin() as connection:
        connection.exec_driver_sql("update login_failure set last_at = last_at - %s", (timedelta(minutes=10),))
    assert log_in(first, PASSWORD).status_code == 201


def test_guesses_at_the_same_time_are_limited_too(make_web: Callable[..., Web]) -> None:
    """Each of them is admitted before the first of them has failed."""
    web = make_web(login_attempts=2)
    web.account("ada", "admin")
    requests: list[str] = []
    all_are_in = threading.Event()

    def counted(_: object, cursor: object, statement: str, *more: object) -> None:
        if "from login_failure f join" in statement:
            requests.append(statement)
            if len(requests) >= GUESSES:
                all_are_in.set()

    def late(_: object, cursor: object, statement: str, *more: object) -> None:
        if statement.startswith("delete from login_failure where last_at"):
            all_are_in.wait(20)

    event.listen(web.engine, "after_cursor_execute", counted)
    event.listen(web.engine, "before_cursor_execute", late)

    with ThreadPoolExecutor(GUESSES) as pool:
        sent = [
            pool.submit(httpx.post, f"{web.url}/auth/token", json={"username": "ada", "password": f"{n}"}, timeout=60)
            for n in range(GUESSES)
        ]
        statuses = sorted(one.result().status_code for one in sent)

    # Two are checked at a time, so that one more than the limit can be under way.
    assert statuses.count(401) <= 3 and statuses.count(429) >= GUESSES - 3


def test_the_addresses_of_one_ipv6_network_count_as_one(web: Web) -> None:
    def wait_s(address: str) -> float:
        return transact(web.engine, logins.seconds_to_wait, "ada", address, attempts=1, window_s=60.0)

    transact(web.engine, logins.failed, "ada", "2001:db8::1", window_s=60.0)
    transact(web.engine, logins.failed, "ada", "::ffff:192.0.2.1", window_s=60.0)

    assert wait_s("2001:db8::ffff:2") > 0 and wait_s("2001:db8:0:1::1") == 0
    assert wait_s("192.0.2.1") > 0 and wait_s("192.0.2.2") == 0


def test_the_addresses_of_one_network_are_limited_together(web: Web) -> None:
    """An attacker uses the addresses of a network in turn, with another account name each time."""
    web.account("ada", "admin")

    def wait_s(name: str, address: str) -> float:
        return transact(web.engine, logins.seconds_to_wait, name, address, attempts=1, window_s=60.0)

    def fail(name: str, address: str) -> None:
        transact(web.engine, logins.failed, name, address, window_s=60.0)

    for number in range(logins.OF_NETWORK):
        assert wait_s(f"n{number}", f"192.0.2.{number}") == 0 and wait_s(f"n{number}", f"2001:db8:7:{number}::1") == 0
        fail(f"n{number}", f"192.0.2.{number}")
        fail(f"n{number}", f"2001:db8:7:{number}::1")

    assert wait_s("other", "192.0.2.200") > 0 and wait_s("other", "192.0.3.200") == 0
    assert wait_s("other", "2001:db8:7:ffff::1") > 0 and wait_s("other", "2001:db8:8::1") == 0
    assert wait_s("ada", "192.0.2.100") > 0
    found = transact(web.engine, accounts.password_of, "ada")
    assert found is not None
    transact(web.engine, logins.issue, found.id, "session", lasts_s=60.0, address="192.0.2.100")
    assert wait_s("Ada", "192.0.2.100") == 0, "its account has logged in from there"
    assert wait_s("other", "192.0.2.100") > 0 and wait_s("ada", "192.0.2.101") > 0
    fail("ada", "192.0.2.100")
    assert wait_s("ada", "192.0.2.100") > 0, "its own failures count"


def test_failed_logins_take_a_bounded_number_of_rows(web: Web, world: World) -> None:
    for number in range(50):
        transact(web.engine, logins.failed, f"n{number}", f"10.0.{number}.1", window_s=3600.0)
    assert world.scenario.rows("select count(*) <= 150 from login_failure") == [(True,)]
    transact(web.engine, logins.failed, "x" * 100_000, "local", window_s=0.0)
    assert world.scenario.rows("select count(*), max(length(key)) < 300 from login_failure") == [(3, True)]


def test_a_web_process_drains(make_web: Callable[..., Web], world: World) -> None:
    web = make_web()
    token = web.account("ada", "admin")
    with web.http(token) as http, http.stream("GET", f"{PREFIX}/dags/etl/dagRuns/now/wait", params={"interval": 60}) as stream:
        lines = stream.iter_lines()
        assert "running" in next(lines)
        web.server.stop()
        assert list(lines) == []
    eventually(lambda: not web.server.is_running())


def test_a_browser_with_a_used_login_link_gets_the_page_with_the_reason(web: Web) -> None:
    with httpx.Client(base_url=web.url) as http:
        shown = http.get("/auth/link", params={"key": "used"}, headers={"Accept": "text/html,*/*;q=0.8"})
        other = http.get("/auth/link", params={"key": "used"})

    assert (shown.status_code, shown.headers["location"]) == (303, "/?login=link-used")
    assert (other.status_code, "used already" in other.json()["detail"]) == (401, True)


USERS = [
    {"sub": "1", "preferred_username": "grace", "groups": ["ops", "all"]},
    {"sub": "2", "preferred_username": "tim", "groups": []},
    {"sub": "3", "preferred_username": "ada", "groups": "platform"},
]


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """The address of a provider with these users."""
    port = free_port()
    users = [part for user in USERS for part in ("--user-claims", json.dumps(user))]
    # -W: the provider uses a module that its library calls deprecated.
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true", *users]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(address), timeout=60)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/.well-known/openid-configuration").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def make(make_web: Callable[..., Web], settings: Settings, provider: str) -> Callable[..., Web]:
    """A web process that trusts the provider."""

    def of(**values: Any) -> Web:
        named = {"issuer": provider, "client_id": "paceline", "client_secret": "a secret", "roles": "ops=operator,platform=admin"}
        return make_web(settings.model_copy(update={"oidc": settings.oidc.model_copy(update=named | values)}))

    return of


def log_in(http: httpx.Client, subject: str) -> httpx.Response:
    """The steps of a browser: go to the provider, choose a user there, and come back."""
    to_provider = http.get("/auth/oidc/login")
    assert to_provider.status_code == 303
    address = to_provider.headers["location"]
    assert "code_challenge_method=S256" in address and "nonce=" in address
    form = httpx.get(address)
    assert form.status_code == 200, form.text
    back = httpx.post(address, data={"sub": subject})
    assert back.status_code in {302, 303}, back.text
    return http.get(back.headers["location"])


def test_a_user_logs_in_with_the_role_of_its_groups(make: Callable[..., Web]) -> None:
    web = make()
    with web.http() as http:
        assert http.get("/auth/methods").json() == {"oidc": True}
        done = log_in(http, "1")
        assert (done.status_code, done.headers["location"]) == (303, "/")
        me = http.get(f"{PREFIX}/me").json()
        assert (me["username"], me["role"], me["tags"]) == ("grace", "operator", {})
    with web.http() as http:
        log_in(http, "3")
        assert http.get(f"{PREFIX}/me").json()["role"] == "admin"
    with web.engine.connect() as connection:
        assert connection.exec_driver_sql("select count(*) from account").scalar_one() == 2
    assert httpx.post(f"{web.url}/auth/token", json={"username": "grace", "password": ""}).status_code == 401


def test_a_user_without_a_group_needs_a_default_role(make: Callable[..., Web]) -> None:
    web = make()
    with web.http() as http:
        refused = log_in(http, "2")
        assert refused.status_code == 403 and "None of your groups" in refused.json()["detail"]
    other = make(default_role="viewer")
    with other.http() as http:
        assert log_in(http, "2").status_code == 303
        assert http.get(f"{PREFIX}/me").json()["role"] == "viewer"


def test_a_user_who_lost_all_groups_loses_all_rights(make: Callable[..., Web], provider: str) -> None:
    """The attempt to log in ends other sessions and API tokens, too. With a group again, the same account gets its role again."""
    web = make()
    user = {"sub": "4", "preferred_username": "joan", "groups": ["platform"]}
    with web.http() as http, web.http() as other:
        for groups, status in ((["platform"], 303), ([], 403), (["all"], 403), (["ops"], 303)):
            assert httpx.put(f"{provider}/users/4", json=user | {"groups": groups}).status_code == 204
            if groups == []:
                with web.engine.begin() as connection:
                    key, _ = logins.issue(connection, accounts.account_id(connection, "joan"), "token", lasts_s=600.0)
                api = web.http(key)
                assert api.get(f"{PREFIX}/variables").status_code == http.get(f"{PREFIX}/variables").status_code == 200
            assert log_in(other, "4").status_code == status, groups
            if status == 403:
                assert [one.get(f"{PREFIX}/me").status_code for one in (http, other, api)] == [401, 401, 401]
            else:
                log_in(http, "4")
        assert other.get(f"{PREFIX}/me").json()["role"] == "operator"
        assert api.get(f"{PREFIX}/me").status_code == 401
        api.close()
    with web.engine.connect() as connection:
        assert connection.exec_driver_sql("select count(*) from account").scalar_one() == 1


def test_a_name_that_a_password_has_is_not_taken_over(make: Callable[..., Web]) -> None:
    web = make()
    web.account("Grace", "admin")
    with web.http() as http:
        assert log_in(http, "1").status_code == 409
        assert http.get(f"{PREFIX}/me").status_code == 401


def test_answers_of_another_login_are_refused(make: Callable[..., Web], provider: str) -> None:
    web = make()
    with web.http() as victim, web.http() as attacker:
        address = attacker.get("/auth/oidc/login").headers["location"]
        back = httpx.post(address, data={"sub": "3"}).headers["location"]
        assert victim.get(back).status_code == 401  # no cookie
        victim.get("/auth/oidc/login")
        assert victim.get(back).status_code == 401  # another state
        assert victim.get("/auth/oidc/callback?error=access_denied&state=x").status_code == 401
        assert victim.get("/auth/oidc/callback").status_code == 401
        assert attacker.get(re.sub(r"code=[^&]*", "code=guessed", back)).status_code == 401


def test_tokens_for_another_client_and_unreachable_providers(make: Callable[..., Web], provider: str) -> None:
    away = make(issuer=f"http://127.0.0.1:{free_port()}")
    with away.http() as http:
        answer = http.get("/auth/oidc/login")
        assert answer.status_code == 503 and "does not answer" in answer.json()["detail"]
    wrong = make(issuer=f"{provider}/other")
    with wrong.http() as http:
        assert http.get("/auth/oidc/login").status_code == 503


def test_without_a_provider(web: Web) -> None:
    with web.http() as http:
        assert http.get("/auth/methods").json() == {"oidc": False}
        assert http.get("/auth/oidc/login").status_code == 404
