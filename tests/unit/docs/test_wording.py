"""Banned phrases: words that make the text hard to read, each with the words to use instead."""

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: A regular expression, and its replacement. Processes are not persons, and the glossary has the terms.
BANNED = {
    r"anew": "again",
    r"whoever": "the process, the user",
    r"some(?:body|one) (?:else|who)": "another process, a user",
    r"says? so": "reports it, logs it",
    r"(?:is|are|was|were|be|been|being) told": "receives, is reported, is logged",
    r"bur(?:y|ied|ies|ying|ial)": "declare lost",
    r"(?:count|look|take[ns]?|found)s?(?: as| for)? dead": "is declared lost",
    r"signs? of life": "heartbeat",
    r"ma[dk]es? up": "generate",
    r"for ever": "forever",
    r"mend(?:s|ed|ing)?": "fix, recover, repair",
    r"puts? (?:it |them |that )?right": "repair",
    r"hears?": "receive",
    r"stirs?|stirring": "pending work",
    r"doorbells?|rings|rang|rung": "wakeup, wake",
    r"wake-ups?": "wakeup",
    r"heirs?": "successor",
    r"hand(?:s|ed|ing)? (?:it |them |its |their |the |slots )*on": "pass on",
    r"warden": "task stopper",
    r"vault": "secrets backend",
    r"headroom": "prefetch window",
    r"with a sentence": "with an error message",
    r"go(?:es)? on (?:by|from|with)": "continue",
    r"ends? in order|stops? in order": "shut down cleanly",
    r"mails": "emails",
    r"throw-away": "temporary",
    r"what comes next": "the next task, the downstream tasks",
    r"in whatever": "in any",
    r"as the \w+ says": "as the setting defines, as its name implies",
}
#: Of pages only: code still has names and messages with these words.
BANNED_ON_PAGES = {
    r"(?:with|and|gets) (?:one|a clear) sentence": "a clear error message",
    r"the (?:run|release|iteration|version) before": "previous",
    r"(?:is|are|was|were|be|been) ended": "is stopped, terminated, killed",
    r"whatever": "regardless of, any",
    r"(?:no longer|still) the current one": "stale, superseded",
    r"cancel(?:led|ling)": "canceled, canceling",
}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "config").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
#: Migrations never change.
MODULES = [
    path
    for folder in ("paceline", "scheduler", "workers", "dags", "bench", "docs", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "versions" not in path.parts and path != Path(__file__)
]
#: Their whole text is prose, names and code alike.
SOURCES = [
    path
    for folder, kinds in (("web/src", {".ts", ".tsx", ".css"}), ("deploy", {".yaml", ".tpl", ".service", ".md", ".txt"}))
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in kinds
]


def prose(page: Path) -> str:
    """A page without code blocks, code spans and link targets."""
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def words(module: Path) -> Iterator[str]:
    """The comments, docstrings, messages and names of tests of a module, without code spans and keys of Redis.

    A string without a space is a name, not prose.
    """
    source = io.StringIO(module.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(source.readline):
        is_string = tokenize.tok_name[token.type] in {"STRING", "FSTRING_MIDDLE"}
        if token.type == tokenize.COMMENT or (is_string and " " in token.string):
            yield re.sub(r"`[^`]*`|paceline:\w+", "", token.string)
        elif token.string.startswith("test_"):
            yield token.string.replace("_", " ")


@cache
def all_words() -> list[tuple[str, str]]:
    texts = [(path, text) for path in MODULES for text in words(path)]
    texts += [(path, path.read_text(encoding="utf-8")) for path in SOURCES]
    return [(str(path.relative_to(ROOT)), text) for path, text in texts]


@pytest.mark.parametrize("phrase", BANNED | BANNED_ON_PAGES)
def test_no_page_has_a_banned_phrase(phrase: str) -> None:
    pattern = re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE)

    found = [f"{page.relative_to(ROOT)}: {match[0]}" for page in PAGES for match in pattern.finditer(prose(page))]

    assert found == [], f"write instead: {(BANNED | BANNED_ON_PAGES)[phrase]}"


@pytest.mark.parametrize("phrase", BANNED)
def test_no_module_has_a_banned_phrase(phrase: str) -> None:
    pattern = re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE)

    found = [f"{name}: {match[0]}" for name, text in all_words() for match in pattern.finditer(text)]

    assert found == [], f"write instead: {BANNED[phrase]}"
