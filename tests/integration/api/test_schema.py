"""Requests that schemathesis generates from the OpenAPI document: no 5xx, and no response that the document does not describe."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from scheduler.api.call import PREFIX

from .conftest import Web, World

#: The first streams until the end of a run, the second is 503 as soon as no scheduler is alive, and the third never ends.
LEFT_OUT = ("/wait", "/health", "/events")
#: Requests for each operation.
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "4"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_generated_request_breaks_anything(web: Web, world: World) -> None:
    token = web.account("ada", "admin")
    headers = {"Authorization": f"Bearer {token}"}
    with web.http(token) as http:
        document = http.get(f"{PREFIX}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    failures: list[str] = []
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith(LEFT_OUT):
            continue
        tried += 1

        def send(case: schemathesis.Case) -> None:
            response = case.call(base_url=web.url, headers=headers)
            case.validate_response(
                response, checks=[not_a_server_error, response_schema_conformance, status_code_conformance], headers=headers
            )

        try:
            settings(
                max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                suppress_health_check=list(HealthCheck),
            )(given(operation.as_strategy())(send))()  # fmt: skip
        except (Exception, BaseExceptionGroup) as error:  # each operation is tried
            failures.append(f"{operation.label}: {error}")

    assert failures == [], "\n\n".join(failures)
    assert tried > 100
