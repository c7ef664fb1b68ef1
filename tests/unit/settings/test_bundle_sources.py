"""The setting bundles.sources: what it accepts, and what it refuses without showing a password."""

import pytest

from paceline.exceptions import SettingsError
from scheduler.settings import Settings
from scheduler.settings.model import effective
from scheduler.settings.types import BundleSource, bundle_sources


def test_sources_are_separated_by_spaces_or_lines() -> None:
    text = "\n  sales=git+https://git.example.org/sales.git#ref=main&folder=dags&connection=git\n  risk=s3://bucket/risk  "
    assert bundle_sources(text) == (
        BundleSource(bundle="risk", url="s3://bucket/risk", is_git=False),
        BundleSource(
            bundle="sales", url="https://git.example.org/sales.git", is_git=True, ref="main", folder="dags", connection="git"
        ),
    )
    assert [source.title for source in bundle_sources(text)] == [
        "s3://bucket/risk", "git+https://git.example.org/sales.git#ref=main&folder=dags",
    ]  # fmt: skip
    assert bundle_sources("") == ()


@pytest.mark.parametrize("url", ["s3://bucket/dags.tar.gz", "https://example.org/DAGS.TGZ"])
def test_an_archive_is_known_by_its_name(url: str) -> None:
    assert bundle_sources(f"a={url}")[0].is_archive and not bundle_sources("a=git+https://example.org/x.tgz")[0].is_archive


@pytest.mark.parametrize(("text", "said"), [
    ("sales", "not a URL"),
    ("=s3://b/c", "not the name"),
    ("a/b=s3://b/c", "not the name"),
    ("..=s3://b/c", "not the name"),
    ("a=ext::sh", "not a URL"),
    ("a=s3://b/c a=s3://d/e", "two sources"),
    ("a=/local/folder", "not a URL"),
    ("a=git+ext://sh", "not a URL"),
    ("a=git+https://ann:secret@host/x", "has a password"),
    ("a=git+https://host/x#branch=main", "unknown option"),
    ("a=s3://bucket/x#ref=main", "unknown option"),
    ("a=git+https://host/x#ref=--upload-pack=x", "the ref"),
    ("a=git+https://host/x#ref=a..b", "the ref"),
    ("a=git+https://host/x#folder=../x", "outside"),
    ("a=git+https://host/x#folder=/etc", "outside"),
])  # fmt: skip
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        bundle_sources(text)
    assert "secret" not in str(refused.value)


def test_a_wrong_source_stops_the_process_without_its_password() -> None:
    with pytest.raises(SettingsError, match=r"bundles\.sources \(set by PACELINE_BUNDLES_SOURCES\)") as refused:
        Settings.load({"PACELINE_BUNDLES_SOURCES": "sales=git+https://ann:secret@host/x#ref=a@b"})
    assert "secret" not in str(refused.value)


def test_sources_are_shown_as_they_are() -> None:
    text = "sales=git+ssh://git@git.example.org/sales.git#ref=main"
    assert effective(Settings.load({"PACELINE_BUNDLES_SOURCES": text}), "bundles.sources") == text
