"""The rules of `.airflowignore` files: the Python files and folders in the DAGs folder that hold no DAG files.

As in Airflow, the rules of a file apply to its folder and all folders below, and a line is a glob pattern as in .gitignore, or
with `core.dag_ignore_file_syntax = "regexp"` a regular expression that is searched in the path relative to the DAGs folder.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

IGNORE_FILE = ".airflowignore"
#: Larger files are not read.
MAX_BYTES = 8 << 20
_COMMENT = re.compile(r"\s*#.*")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. `matches` takes a path relative to `folder`, or only a name if that is None; the path of a folder ends in "/"."""

    matches: Callable[[str], bool]
    folder: str | None
    #: False for an exception ("!"): a matching entry is not ignored.
    ignores: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a folder: first the rules of the folders around it, then its own."""

    rules: tuple[Rule, ...] = ()
    #: Whether the folder itself is ignored, with everything in it.
    all_ignored: bool = False

    def ignore(self, path: str, *, is_folder: bool) -> bool:
        """Whether an entry of the folder is ignored. The last rule that matches decides."""
        if self.all_ignored:
            return True
        ignored = False
        for rule in self.rules:
            place = os.path.basename(path) if rule.folder is None else os.path.relpath(path, rule.folder)  # noqa: PTH119
            if rule.matches(f"{place}/" if is_folder else place):
                ignored = rule.ignores
        return ignored


class IgnoreFiles:
    """The rules of all folders of one listing. Open a folder before those inside it. `warn` receives invalid files and lines."""

    def __init__(self, folder: Path, syntax: str, warn: Callable[[str, str], None]) -> None:
        self._root = str(folder)
        self._compile = _regexp if syntax == "regexp" else _glob
        self._warn = warn
        self._folders: dict[str, Rules] = {}

    def open(self, folder: str) -> None:
        """Read the rules of a folder."""
        outer = self._folders.get(os.path.dirname(folder), Rules()) if folder != self._root else Rules()  # noqa: PTH120
        if folder != self._root and outer.ignore(folder, is_folder=True):
            self._folders[folder] = replace(outer, all_ignored=True)
            return
        self._folders[folder] = Rules((*outer.rules, *self._own(folder)))

    def ignore(self, path: str) -> bool:
        """Whether a file is ignored. Its folder must be open."""
        return self._folders.get(os.path.dirname(path), Rules()).ignore(path, is_folder=False)  # noqa: PTH120

    def _own(self, folder: str) -> list[Rule]:
        path = f"{folder}/{IGNORE_FILE}"
        try:
            content = content_of(Path(path), MAX_BYTES)
            lines: Sequence[str] = [] if content is None else content.decode("utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            self._warn(path, f"it cannot be read: {error}")
            return []
        rules = []
        for number, line in enumerate(lines, start=1):
            if not (pattern := _COMMENT.sub("", line)).strip():
                continue
            try:
                rules.append(self._compile(pattern, folder, self._root))
            except (ValueError, re.error) as error:
                self._warn(f"{path}:{number}", f"{pattern!r} is not valid: {error}")
        return [rule for rule in rules if rule is not None]


def content_of(path: Path, most_bytes: int) -> bytes | None:
    """The content of a regular file, empty for any other kind; None if it has more bytes. OSError."""
    # The path may have become a pipe in the meantime, and opening it must not wait.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        content = file.read(most_bytes + 1)
    return None if len(content) > most_bytes else content


def _regexp(pattern: str, folder: str, root: str) -> Rule:
    expression = re.compile(pattern)
    return Rule(lambda place: expression.search(place.rstrip("/")) is not None, root)


def _glob(pattern: str, folder: str, root: str) -> Rule | None:
    """None for a line that matches nothing."""
    # Loaded here, because few folders have such a file.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    glob = GitIgnoreSpecPattern(pattern)
    if glob.include is None:
        return None
    # As in .gitignore: with a slash at the start or inside, the pattern is relative to its own folder.
    return Rule(
        lambda place: glob.match_file(place) is not None, folder if "/" in pattern.rstrip("/") else None, ignores=glob.include
    )
