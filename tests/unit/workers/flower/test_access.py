"""The host names under which Flower responds."""

import pytest

from workers.flower import access


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True), ("192.0.2.7", True), ("[::1]", True), ("::1", True), ("localhost", True), ("LOCALHOST.", True),
        ("flower.example", True), ("attacker.example", False), ("localhost.attacker.example", False), ("127.0.0.1.nip.io", False),
        ("", False), ("2130706433", False),
    ],
)  # fmt: skip
def test_a_name_that_could_be_rebound_is_refused(host: str, allowed: bool) -> None:
    assert access.is_allowed(host, ["flower.example"]) is allowed
    assert access.is_allowed(host, ["*"])
