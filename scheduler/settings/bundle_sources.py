"""The sources of bundles that schedulers read themselves: the setting `bundles.sources` as objects."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
REF = re.compile(r"[A-Za-z0-9_](?!.*\.\.)[A-Za-z0-9_./+@-]*")
GIT = "git+"
#: What Git may use; the others, such as ext::, run programs.
GIT_SCHEMES = ("https", "http", "ssh", "git", "file")
ARCHIVES = (".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSource:
    """A Git repository, or an archive or a folder at a URL of fsspec, from which schedulers publish the versions of a bundle."""

    bundle: str
    #: For Git, without git+.
    url: str
    is_git: bool
    #: A branch, a tag or a full commit ID; empty for the default branch. Only for Git.
    ref: str = ""
    #: The folder in the repository that is the bundle; empty for all of it. Only for Git.
    folder: str = ""
    #: The ID of a connection with the login.
    connection: str = ""
    #: A file with the private key for ssh, or with the token for https. Only for Git.
    key: str = ""
    #: A file with the keys of the server, for ssh; empty for that of the user. Only for Git.
    known_hosts: str = ""

    @property
    def is_archive(self) -> bool:
        return not self.is_git and self.url.lower().endswith(ARCHIVES)

    @property
    def title(self) -> str:
        """The source for people. It has no secrets."""
        options = [f"{name}={value}" for name in ("ref", "folder") if (value := getattr(self, name))]
        return f"{GIT if self.is_git else ''}{self.url}{'#' if options else ''}{'&'.join(options)}"


def parse(text: str) -> tuple[BundleSource, ...]:
    """The sources in `bundles.sources`, by bundle. ValueError says what is wrong, without a password."""
    sources = tuple(sorted(_each(text), key=lambda source: source.bundle))
    for source, other in itertools.pairwise(sources):
        if source.bundle == other.bundle:
            raise ValueError(f"bundle {source.bundle!r} has two sources")
    return sources


def _each(text: str) -> Iterator[BundleSource]:
    for pair in text.split():
        bundle, _, address = pair.partition("=")
        if not NAME.fullmatch(bundle):
            raise ValueError(f"{bundle!r} is not the name of a bundle")
        address, _, fragment = address.partition("#")
        is_git = address.startswith(GIT)
        url = address.removeprefix(GIT)
        parts = urlsplit(url)
        if not parts.scheme or "://" not in url or (is_git and parts.scheme not in GIT_SCHEMES):
            raise ValueError(f"bundle {bundle!r} has a source that is not a URL")
        if parts.password is not None:
            raise ValueError(f"the URL of bundle {bundle!r} has a password")
        options = parse_qsl(fragment, keep_blank_values=True, strict_parsing=True) if fragment else []
        known = {"ref", "folder", "connection", "key", "known_hosts"} if is_git else {"connection"}
        if not known.issuperset(name for name, _ in options):
            raise ValueError(f"bundle {bundle!r} has an unknown option of its source")
        source = BundleSource(bundle=bundle, url=url, is_git=is_git, **dict(options))
        if source.ref and not REF.fullmatch(source.ref):
            raise ValueError(f"the ref of bundle {bundle!r} is none")
        if source.folder.startswith("/") or ".." in source.folder.split("/"):
            raise ValueError(f"the folder of bundle {bundle!r} is outside its source")
        yield source
