"""The promises of two pages name the tests that try them.

tools/promises.txt has parts of the sentences of docs/explanation/security.md about what is forbidden, and below each its tests.
"""

import re
from collections.abc import Iterator

from tools.sources import check, missing, read, rows, spaced

#: Sentences with "cannot" and the like that promise nothing: advice, and limits of the protection.
NO_PROMISE = (
    "a task can also delete", "you open in a container", "Let workers run as another user",
    "For any other role", "if migrating could not do that", "all others",
    "shuts down cleanly", "`pool_grow`", "`add_consumer`", "`pool_restart`", "`rate_limit`",
)  # fmt: skip
PROMISES = re.compile(r"\b(?:cannot|can neither|may not|None of them may|[Nn]obody else|rejected as|never changes|rejects)\b")
#: The faults for which the design promises an answer.
FAULTS = (
    "a scheduler is killed at any line", "it is killed between commit and publish", "Redis is emptied", "a worker's machine dies",
    "a pool child dies", "a worker is stopped or cut off, then back", "PostgreSQL restarts", "PostgreSQL crashes",
    "a connection is half-open", "a message comes twice", "SIGTERM",
)  # fmt: skip


def tried() -> dict[str, list[str]]:
    """A part of each sentence, and the tests that try it."""
    parts = re.findall(r"^(\S.*)\n((?: +.*\n)+)", read("tools/promises.txt"), re.MULTILINE)
    return {part: tests.split() for part, tests in parts}


@check
def every_promise_of_the_page_of_security_is_tried() -> Iterator[str]:
    """Each sentence about something forbidden has its tests, and each listed part is in a sentence."""
    page, known = spaced(read("docs/explanation/security.md")), tried()
    for part, tests in known.items():
        if part not in page:
            yield f"the page has no sentence with: {part}"
        yield from missing(tests)
    for sentence in re.split(r"(?<=[.;:]) +(?=[A-Z*`|])|(?= \| `)", page):
        if PROMISES.search(sentence) and not any(part in sentence for part in (*known, *NO_PROMISE)):
            yield f"name the tests of this sentence in tools/promises.txt: {sentence}"


@check
def each_fault_has_a_row_and_its_tests() -> Iterator[str]:
    """docs/explanation/when-things-break.md has a row for each fault, and names tests that exist."""
    table = rows(read("docs/explanation/when-things-break.md"))[1:]
    yield from (f"no row begins with: {fault}" for fault in FAULTS if not any(row[0].startswith(fault) for row in table))
    for row in table:
        tests = re.findall(r"`tests/([\w/]+\.py::\w+)`", row[3])
        yield from missing(tests) if tests else [f"the row names no test: {row[0]}"]
