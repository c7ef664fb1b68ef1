"""Each command, option, setting, make target and file that a page names exists."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from scheduler.cli import paceline
from scheduler.settings import environment
from scheduler.settings.model import Settings, environment_names, keys

ROOT = Path(__file__).parents[3]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "config/README.md", "bench/README.md", "deploy/monitoring/README.md")
    ),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parts[-2] not in ("reference", "adr")),
]
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
#: Prefixes of `paceline` in a line of a shell, and the end of its command.
COMMAND = re.compile(
    r"(?:^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*|&& |; |-- |/|exec \S+ |--rm \S+ |sudo -u \S+ )paceline (--?[a-z].*|[a-z].*)"
)
END = re.compile(r"\s(?:\||\|\||&&|;|#|>|2>|&)(?:\s|$)|[;)]|$")
FOLDERS = ("paceline", "scheduler", "workers", "tests", "deploy", "docs", "bench", "config", "dags", "web", ".make")
#: Names of connections, not commands.
CONNECTIONS = re.compile(r"(task|progress)\b")
#: Files of a user's project.
OF_USERS = re.compile(r"(dags/(hello|my|etl|weather|scheduler)\b|tests/test_dags|config/(\.env|email))")
#: A value of the chart, and a property of Spark, that look like settings.
NO_SETTINGS = {"metrics.enabled", "spark.jars"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of each block of code."""
    yield from FENCE.findall(page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """The code in the sentences of a page."""
    return SPAN.findall(FENCE.sub("", page.read_text(encoding="utf-8")))


def commands(page: Path) -> Iterator[str]:
    """The text after `paceline` in each command of a page."""
    lines = [line for language, text in blocks(page) if language != "python" for line in text.replace("\\\n", " ").splitlines()]
    for text in [*lines, *spans(page)]:
        for found in COMMAND.findall(re.sub(r"\$\([^)]*\)", "X", text)):
            end = END.search(found)
            if not CONNECTIONS.match(found):
                yield found[: end.start()].strip() if end else found


def complaint(words: list[str]) -> str | None:
    """The error of a command, or None. It may lack arguments: a sentence names commands without them."""
    command: click.Command = paceline
    path = "paceline"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.commands.get(name) or command.get_command(click.Context(command, **paceline.context_settings), name)
        if found is None:
            return f"{path} has no command {name}"
        command, path = found, f"{path} {name}"
    context = click.Context(command, info_name=path, **paceline.context_settings)
    try:
        _, left, _ = command.make_parser(context).parse_args(words) if not isinstance(command, click.Group) else ({}, [], [])
    except click.UsageError as error:
        return f"{path}: {error.format_message()}"
    return f"{path} takes no {left}" if left else None


def variants(text: str) -> Iterator[list[str]]:
    """The words of a command, once for each of the alternatives in `runs|tasks clear`."""
    words = [word for word in shlex.split(text, comments=True) if word != "..."]
    at = next((number for number, word in enumerate(words) if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word)), None)
    if at is None:
        yield words
        return
    for choice in words[at].split("|"):
        yield [*words[:at], choice, *words[at + 1 :]]


def test_the_commands_of_pages_are_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 150


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("runs explode d r", "paceline runs has no command explode"),
        ("dags list --jsno", "paceline dags list: No such option '--jsno'. Did you mean '--json'?"),
        ("pools set a 1 2", "paceline pools set takes no ['2']"),
        ("runs list --dag d", None),
    ],
)
def test_a_wrong_command_is_found(text: str, why: str | None) -> None:
    (words,) = variants(text)

    assert complaint(words) == why


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_command_exists_with_its_options(page: Path) -> None:
    wrong = []
    for text in commands(page):
        try:
            wrong += [f"paceline {text}: {why}" for words in variants(text) if (why := complaint(words))]
        except ValueError as error:
            wrong.append(f"paceline {text}: {error}")

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_setting_exists(page: Path) -> None:
    sections = set(Settings.model_fields)
    wrong = []
    for span in spans(page):
        name = re.fullmatch(r"([a-z]+)\.([a-z_]+)(?: *= *.*)?", span)
        if name is None or name[1] not in sections or name[2] in ("py", "md", "toml", "env") or name[0] in NO_SETTINGS:
            continue
        if f"{name[1]}.{name[2]}" not in keys():
            wrong.append(span)
    for language, text in blocks(page):
        if language == "toml":
            found = tomllib.loads(text)
            tables = {name: values for name, values in found.items() if isinstance(values, dict) and name in sections}
            wrong += [f"[{name}] {key}" for name, values in tables.items() for key in values if f"{name}.{key}" not in keys()]
    known = {*environment_names(), *environment.OTHER_NAMES}
    for name in re.findall(r"\bPACELINE_[A-Z_]*[A-Z]\b(?![_<])", page.read_text(encoding="utf-8")):
        if (
            name not in known
            and not name.startswith(environment.STORE_PREFIXES)
            and f"{name}_" not in ("PACELINE_VAR_", "PACELINE_CONN_")
        ):
            wrong.append(name)

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_file_exists(page: Path) -> None:
    wrong = []
    for span in spans(page):
        place = span.rstrip("/").partition("::")[0]
        is_path = re.fullmatch(r"[\w.-]+/[\w./*-]+", place) and place.split("/")[0] in FOLDERS
        if is_path and not OF_USERS.match(place) and not any(ROOT.glob(place)):
            wrong.append(span)

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    lines = [line for language, text in blocks(page) if language in ("sh", "") for line in text.splitlines()]
    named_ones = {found[1] for text in [*lines, *spans(page)] if (found := re.match(r"\s*make ([a-z][a-z-]*)", text))}

    assert named_ones - targets == set()


def test_each_how_to_is_in_the_list_of_pages() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(how-to/([\w-]+\.md)\)", index))

    assert {path.name for path in (ROOT / "docs" / "how-to").glob("*.md")} == linked
