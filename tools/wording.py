"""Banned phrases: words that make the text hard to read, each with the words to use instead."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tools.sources import ROOT, check

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


def pages() -> Iterator[tuple[Path, str]]:
    """The prose of each page: its text without code blocks, code spans and link targets."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "config").glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        yield path, re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def modules() -> Iterator[tuple[Path, str]]:
    """The words of each module. Migrations never change, and this file has the phrases."""
    for folder in ("paceline", "scheduler", "workers", "dags", "bench", "docs", "tests", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "versions" not in path.parts and path != Path(__file__):
                yield path, "\n".join(words(path.read_text(encoding="utf-8")))


def sources() -> Iterator[tuple[Path, str]]:
    """The pages of the web interface and the files for deployment: their whole text is prose, names and code alike."""
    for folder, kinds in (("web/src", {".ts", ".tsx", ".css"}), ("deploy", {".yaml", ".tpl", ".service", ".md", ".txt"})):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in kinds:
                yield path, path.read_text(encoding="utf-8")


def words(module: str) -> Iterator[str]:
    """The comments, docstrings, messages and names of tests of a module, without code spans and keys of Redis.

    A string without a space is a name, not prose.
    """
    for token in tokenize.generate_tokens(io.StringIO(module).readline):
        is_string = tokenize.tok_name[token.type] in {"STRING", "FSTRING_MIDDLE"}
        if token.type == tokenize.COMMENT or (is_string and " " in token.string):
            yield re.sub(r"`[^`]*`|paceline:\w+", "", token.string)
        elif token.string.startswith("test_"):
            yield token.string.replace("_", " ")


def banned(texts: Iterator[tuple[Path, str]], phrases: dict[str, str]) -> Iterator[str]:
    """The banned phrases in some texts."""
    any_phrase = re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE)
    for path, text in texts:
        for match in any_phrase.finditer(text):
            instead = next(one for phrase, one in phrases.items() if re.fullmatch(phrase, match[0], re.IGNORECASE))
            yield f"{path.relative_to(ROOT)}: {match[0]!r}; write instead: {instead}"


@check
def no_text_has_a_banned_phrase() -> Iterator[str]:
    """Neither pages nor comments, docstrings, messages and names of tests."""
    yield from banned(pages(), BANNED | BANNED_ON_PAGES)
    yield from banned(modules(), BANNED)
    yield from banned(sources(), BANNED)
