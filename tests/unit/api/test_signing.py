"""A token is accepted only if this installation signed it, it has not ended, and it has the claims that are wanted."""

import time

import pytest

from scheduler.api import login

SECRET = b"a secret of this installation, with 32 bytes or more"
#: Later than the end of the longest run of tests.
SOON = int(time.time()) + 86_400
UNSIGNED = "eyJhbGciOiJub25lIn0.eyJzaWQiOiAieCJ9."


def test_a_signed_token_gives_its_claims() -> None:
    token = login.sign({"sid": "x", "exp": SOON}, SECRET)

    assert login.claims_of(token, SECRET, sid=None) == {"sid": "x", "exp": SOON}


@pytest.mark.parametrize(
    ("claims", "wanted"),
    [
        ({"sid": "x", "exp": SOON - 100_000}, {"sid": None}),
        ({"sid": "x"}, {"sid": None}),
        ({"exp": SOON}, {"sid": None}),
        ({"sid": "x", "exp": "soon"}, {"sid": None}),
        ({"exp": SOON, "aud": "other"}, {"aud": "oidc"}),
        ({"exp": SOON}, {"aud": "oidc"}),
    ],
    ids=["ended", "never ends", "lacks a claim", "ends at no time", "for others", "for nobody"],
)
def test_a_token_without_the_wanted_claims_gives_none(claims: dict[str, object], wanted: dict[str, str | None]) -> None:
    assert login.claims_of(login.sign(claims, SECRET), SECRET, **wanted) is None


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "é.b.c", "W10.W10.W10", "eyJhbGciOlsxXX0.e30.AA", UNSIGNED, "." * 10_000])
def test_a_token_of_others_gives_none(token: str) -> None:
    assert login.claims_of(token, SECRET, sid=None) is None
    assert login.claims_of(login.sign({"sid": "x", "exp": SOON}, b"another secret, also with 32 bytes or more"), SECRET) is None
