"""`make check` queries known vulnerabilities, and reports it where it cannot."""

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

LOADER = SourceFileLoader("vulnerabilities", str(Path(__file__).resolve().parents[3] / "deploy" / "vulnerabilities"))
HOLE = {"id": "CVE-2030-1", "fix_versions": ["1.2"]}


@pytest.fixture(scope="module")
def script() -> Any:
    spec = spec_from_loader("vulnerabilities", LOADER)
    assert spec is not None
    module = module_from_spec(spec)
    LOADER.exec_module(module)
    return module


def report(**vulns: Any) -> str:
    return json.dumps({
        "dependencies": [
            {"name": name, "skip_reason": holes} if isinstance(holes, str) else {"name": name, "version": "1", "vulns": holes}
            for name, holes in vulns.items()
        ]
    })  # fmt: skip


def test_a_known_vulnerability_fails_the_check_and_is_named(script: Any) -> None:
    lines, code = script.judged(report(a=[], b=[HOLE]), "")

    assert code == 1
    assert lines == ["2 of 2 pinned packages were audited for known vulnerabilities.", "b 1: CVE-2030-1, fixed in 1.2"]


def test_a_service_that_does_not_respond_is_reported_and_fails_nothing(script: Any) -> None:
    lines, code = script.judged("", "Traceback ...\nConnectionError: no route")

    assert code == 0
    assert lines == [
        "NOT AUDITED for known vulnerabilities: PyPI's vulnerability service did not answer (ConnectionError: no route)."
    ]


def test_an_empty_index_does_not_count_as_no_vulnerabilities(script: Any) -> None:
    lines, code = script.judged(report(a="not found on PyPI", b="not found on PyPI"), "No known vulnerabilities found")

    assert code == 0
    assert lines[0].startswith("NOT AUDITED for known vulnerabilities: the package index here knows none of the 2 pins")


def test_omitted_packages_are_named(script: Any) -> None:
    lines, code = script.judged(report(a=[], b="not found on PyPI"), "")

    assert code == 0
    assert lines[1] == "NOT AUDITED: b."
