"""Each command, option, setting, make target and file that a page names exists."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from scheduler.cli import paceline
from scheduler.settings import environment
from scheduler.settings.model import Settings, environment_names, keys
from tools.sources import ROOT, check, differences, read

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
FOLDERS = ("paceline", "scheduler", "workers", "tests", "deploy", "docs", "bench", "config", "dags", "web", "tools", ".make")
#: Names of connections, not commands.
CONNECTIONS = re.compile(r"(task|progress)\b")
#: Files of a user's project.
OF_USERS = re.compile(r"(dags/(hello|my|etl|weather|scheduler)\b|tests/test_dags|config/(\.env|email))")
#: A value of the chart, and a property of Spark, that look like settings.
NO_SETTINGS = {"metrics.enabled", "spark.jars"}


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


def wrong_commands(page: Path) -> Iterator[str]:
    """The commands of a page that do not exist, or lack an option."""
    for text in commands(page):
        try:
            yield from (f"paceline {text}: {why}" for words in variants(text) if (why := complaint(words)))
        except ValueError as error:
            yield f"paceline {text}: {error}"


def wrong_settings(page: Path) -> Iterator[str]:
    """The settings of a page that do not exist, in its sentences, in blocks of TOML and as variables of the environment."""
    sections = set(Settings.model_fields)
    for span in spans(page):
        found = re.fullmatch(r"([a-z]+)\.([a-z_]+)(?: *= *.*)?", span)
        if found and found[1] in sections and found[2] not in ("py", "md", "toml", "env") and found[0] not in NO_SETTINGS:
            yield from () if f"{found[1]}.{found[2]}" in keys() else [f"there is no setting {span}"]
    for language, text in blocks(page):
        for name, values in tomllib.loads(text).items() if language == "toml" else ():
            if isinstance(values, dict) and name in sections:
                yield from (f"there is no setting {name}.{key}" for key in values if f"{name}.{key}" not in keys())
    known = {*environment_names(), *environment.OTHER_NAMES}
    for name in re.findall(r"\bPACELINE_[A-Z_]*[A-Z]\b(?![_<])", page.read_text(encoding="utf-8")):
        is_prefix = f"{name}_" in ("PACELINE_VAR_", "PACELINE_CONN_") or name.startswith(environment.STORE_PREFIXES)
        if name not in known and not is_prefix:
            yield f"there is no variable {name}"


def wrong_files(page: Path) -> Iterator[str]:
    """The files of the repository that a page names and that do not exist."""
    for span in spans(page):
        place = span.rstrip("/").partition("::")[0]
        is_path = re.fullmatch(r"[\w.-]+/[\w./*-]+", place) and place.split("/")[0] in FOLDERS
        if is_path and not OF_USERS.match(place) and not any(ROOT.glob(place)):
            yield f"there is no file {span}"


def wrong_targets(page: Path) -> Iterator[str]:
    """The targets of make that a page names and that do not exist."""
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    lines = [line for language, text in blocks(page) if language in ("sh", "") for line in text.splitlines()]
    for text in [*lines, *spans(page)]:
        found = re.match(r"\s*make ([a-z][a-z-]*)", text)
        if found and found[1] not in targets:
            yield f"there is no target {found[1]}"


@check
def pages_name_only_what_exists() -> Iterator[str]:
    """Commands with their options, settings, files and targets of make."""
    for page in PAGES:
        for wrong in (wrong_commands, wrong_settings, wrong_files, wrong_targets):
            yield from (f"{page.relative_to(ROOT)}: {one}" for one in wrong(page))


@check
def each_how_to_is_in_the_list_of_pages() -> Iterator[str]:
    """docs/index.md links each page of docs/how-to."""
    linked = set(re.findall(r"\(how-to/([\w-]+\.md)\)", read("docs/index.md")))
    yield from differences({path.name for path in (ROOT / "docs" / "how-to").glob("*.md")}, linked, "link it in docs/index.md")
