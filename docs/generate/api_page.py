"""The reference of the REST API: every route with its role, query parameters and body, from the OpenAPI document."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler.settings import Settings

PREFIX = "/api/v2"
#: The meanings of the scopes of scheduler/api/access.py.
SCOPES = {"dag": "on the DAG", "any": "on a DAG", "all": "", "login": "", "bundle": "on the bundle"}


def lines() -> list[str]:
    """The lines of docs/reference/api.md below its title."""
    from scheduler.api.access import TABLE

    document = openapi()
    # Without the converters of path parameters, which an OpenAPI document does not have.
    needed = {route.replace(":path}", "}"): needs for route, needs in TABLE.items()}
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation.get("tags", ["Other"])[0]].append(_row(method.upper(), path, operation, needed))
    text = [
        "Every route of a web process. [The guide](../how-to/rest-api.md) shows how to log in and send requests. The types of all",
        "fields are in the OpenAPI document, which each web process serves at `/api/v2/openapi.json`.",
        "",
        'A role "on the DAG" can be a right by tag. "on a DAG" means on at least one DAG; the response has only DAGs that the',
        'account may see. "on the bundle" is the role by the tag `bundle:<name>`; to deploy without it, an account needs the',
        "role admin. The section `Paceline` lists the routes that Airflow's API lacks.",
    ]
    for tag in sorted(by_tag, key=lambda name: (name == "Paceline", name.lower())):
        text += ["", f"## {tag}", "", "| route | role | meaning | query | body |", "|---|---|---|---|---|", *by_tag[tag]]
    return text


def openapi() -> Mapping[str, Any]:
    """The OpenAPI document. Needs no server."""
    from scheduler.api import app

    with tempfile.TemporaryDirectory() as home:
        environ = {
            "PACELINE_HOME": home,
            "PACELINE_WEB_SIGNING_KEY": "x" * 32,
            "PACELINE_DATABASE_URL": "postgresql://nowhere/none",
        }
        document: Mapping[str, Any] = app.create(Settings.load(environ)).openapi()
        return document


def _row(method: str, path: str, operation: Mapping[str, Any], needed: Mapping[str, Any]) -> str:
    needs = needed.get(f"{method} {path.removeprefix(PREFIX)}")
    role = "none" if needs is None else "any" if needs.scope == "login" else f"{needs.role} {SCOPES[needs.scope]}".strip()
    meaning = " ".join(operation.get("description", operation.get("summary", "")).split()).replace("|", "\\|")
    return f"| `{method} {path}` | {role} | {meaning} | {', '.join(_query(operation))} | {_body(operation)} |"


def _query(operation: Mapping[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query":
            yield f"`{parameter['name']}`" + (" (required)" if parameter.get("required") else "")


def _body(operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        name = media.get("schema", {}).get("$ref", "").rpartition("/")[2] or media.get("schema", {}).get("title", "")
        return f"`{name}`" if name else "yes"
    return ""
