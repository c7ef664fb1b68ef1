"""Masking: no secret appears whole, for any split of the output into pieces."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import secrets_masker
from scheduler.process.masked_output import MaskedOutput

#: Few letters, so that secrets overlap, begin alike, and stand side by side.
secrets = st.lists(st.text("ab1", min_size=4, max_size=7), max_size=4)
pieces = st.lists(st.text("ab1", max_size=8), max_size=12)


def known(*texts: object) -> secrets_masker.Secrets:
    secrets = secrets_masker.Secrets()
    secrets.add(list(texts))
    return secrets


@given(secrets, pieces)
def test_a_stream_in_pieces_gives_the_same_output_as_the_whole(texts: list[str], chunks: list[str]) -> None:
    stream = secrets_masker.Stream(known(*texts))

    given_out = b"".join([*(stream.feed(chunk.encode()) for chunk in chunks), stream.finish()]).decode()

    assert given_out == known(*texts).redact("".join(chunks))
    assert [text for text in texts if text in given_out] == []


@given(secrets, pieces)
def test_text_without_secrets_passes_immediately(texts: list[str], chunks: list[str]) -> None:
    stream = secrets_masker.Stream(known(*texts))

    assert b"".join(stream.feed(b"x" + chunk.encode() + b"\n") for chunk in chunks).endswith(b"\n" if chunks else b"")


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("pa55/word", "postgres://u:pa55%2Fword@host", "postgres://u:***@host"),
        ('quo"te\\d', '{"x": "quo\\"te\\\\d"}', '{"x": "***"}'),
        ("schlüssel", "schl\\u00fcssel und schlüssel", "*** und ***"),
        ("-----BEGIN KEY-----\nMIIEvQIBADANB\nabc", "  MIIEvQIBADANB\n", "  ***\n"),
        ("  padded-secret\n", "(padded-secret)", "(***)"),
        ("abc", "abc", "abc"),
        (b"bytes-secret", "bytes-secret", "***"),
        (12345, "code 12345", "code ***"),
        (True, "True story", "True story"),
        ({"a": ["deep-secret"]}, "a deep-secret", "a ***"),
    ],
)
def test_a_secret_is_masked_in_its_other_spellings_too(secret: object, text: str, shown: str) -> None:
    assert known(secret).redact(text) == shown


@pytest.mark.parametrize(
    ("name", "secret"),
    [("DB_PASSWORD", True), ("api_key", True), ("ApiKey", True), ("github_token", True), ("Authorization", True),
     ("private_key", True), ("passphrase", True), ("region", False), ("key_name", False), ("depth", False)],
)  # fmt: skip
def test_names_that_look_secret(name: str, secret: bool) -> None:
    assert secrets_masker.looks_secret(name) is secret


def test_secrets_inside_a_value_are_hidden_from_people() -> None:
    value = {"region": "north", "auth": {"token": "x"}, "passwords": ["a", "b"], "empty_secret": ""}

    assert secrets_masker.hidden(value) == {
        "region": "north",
        "auth": {"token": "***"},
        "passwords": ["***", "***"],
        "empty_secret": "",
    }
    assert secrets_masker.hidden({"a": 1}, secret=True) == {"a": "***"}
    assert list(secrets_masker.secrets_in(value)) == ["x", ["a", "b"], ""]


def test_a_pipe_masks_its_input_and_drains_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    target = os.open(path, os.O_WRONLY | os.O_CREAT)
    descriptor = os.dup(target)
    pipe = MaskedOutput(target, (descriptor,), known("hunter22"))
    stays = os.dup(descriptor)

    os.write(descriptor, b"one hun")
    os.write(descriptor, b"ter22 two hunter")
    pipe.settle()
    settled = path.read_text()
    os.close(descriptor)
    pipe.close()
    os.write(stays, b"later hunter22\n")
    pipe_end = pipe.thread
    os.close(stays)
    pipe_end.join(10)

    assert settled == "one *** two hunter"
    assert path.read_text() == "one *** two hunterlater ***\n"


@pytest.mark.parametrize("depth", [600, 100_000])
def test_a_value_that_is_nested_too_deeply_is_masked_whole(depth: int) -> None:
    """A list of variables must not fail because of one of them."""
    assert secrets_masker.shown("deep", "[" * depth + '{"password": "x"}' + "]" * depth) == secrets_masker.MASK
