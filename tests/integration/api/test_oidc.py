"""Logins through a real OpenID Connect provider in a process of its own."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.processes import free_port
from support.waiting import eventually

from scheduler.api.call import PREFIX
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins

from .conftest import Web

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
