"""The types of settings. A type checks a value, and describes the allowed ones."""

import base64
import ipaddress
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

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


def bundle_sources(text: str) -> tuple[BundleSource, ...]:
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


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("there is no such time zone") from None
    return name


def _scheme(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if urlsplit(url).scheme not in schemes:
            raise ValueError("the scheme is not allowed")
        return url

    return AfterValidator(check)


def broker_urls(text: str) -> tuple[str, ...]:
    """The URLs of a list, separated by commas. A comma in a password stays, unless a scheme follows it."""
    return tuple(url.strip() for url in re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)", text))


def _brokers(text: str) -> str:
    urls = broker_urls(text)
    schemes = {urlsplit(url).scheme for url in urls}
    if not schemes <= {"redis", "rediss", "redis+socket"} or (";" in text and re.search(r";\s*redis(s|\+socket)?://", text)):
        raise ValueError("the scheme is not allowed")
    if len(urls) > 1:
        _several(urls, schemes)
    return text


def _several(urls: tuple[str, ...], schemes: set[str]) -> None:
    """Check what only a list can get wrong. Celery has one set of options for the connection to any of them."""
    parts = [urlsplit(url) for url in urls]
    if len(schemes) > 1 or len({_tls(one.query) for one in parts}) > 1:
        raise ValueError("the URLs differ in scheme or TLS options")
    places = [(one.hostname, one.port, one.path, () if one.hostname else one.query) for one in parts]  # ValueError: no port
    if len(set(places)) < len(places) or not all(one.hostname or one.scheme == "redis+socket" for one in parts):
        raise ValueError("a URL has no host, or is there twice")


def _tls(query: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(option for option in parse_qsl(query) if option[0].startswith("ssl_")))


def _data_url(place: str) -> str:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)", place) or re.search(r"[*?\[\]{}]", place):
        raise ValueError("that is neither a folder nor a URL")
    return place


def _fernet_keys(keys: str) -> str:
    for key in keys.split(",") if keys else ():
        try:
            size = len(base64.urlsafe_b64decode(key.strip()))
        except ValueError:
            size = 0
        if size != FERNET_KEY_BYTES:
            raise ValueError("that is not a Fernet key")
    return keys


def _networks(names: str) -> str:
    for name in names.split(",") if names else ():
        try:
            # "*" is none: with it, each client could choose its address, by which logins are limited and changes audited.
            ipaddress.ip_network(name.strip())
        except ValueError:
            raise ValueError("that is not a list of addresses and networks") from None
    return names


def _bundle_sources(text: str) -> str:
    bundle_sources(text)
    return text


def _statsd(address: str) -> str:
    host, _, port = address.rpartition(":")
    if host and not address.startswith("unix://"):
        host.strip("[]").encode("idna")  # UnicodeError is a ValueError
        if not 1 <= int(port) <= 65535:
            raise ValueError("that is no port")
    return address


def _allowed(text: str, pattern: str | None = None) -> Any:
    """The allowed values in words, and as a regular expression."""
    return Field(pattern=pattern, json_schema_extra={"allowed": text})


FERNET_KEY_BYTES = 32
_ROLE = "(viewer|operator|admin)"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Days = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
ZoneName = Annotated[str, AfterValidator(_zone), _allowed("an IANA time zone such as Europe/Berlin")]
DatabaseUrl = Annotated[str, _scheme("postgresql", "postgres"), _allowed("postgresql://user:password@host:port/name")]
BrokerUrl = Annotated[
    str,
    AfterValidator(_brokers),
    _allowed(
        "redis://:password@host:port/db, rediss://... or redis+socket:///path, or several of one scheme and with equal TLS options,"
        " each server once, separated by commas"
    ),
]
SigningKey = Annotated[str, _allowed("a text of at least 32 characters", r"^(|.{32,})$")]
OidcIssuer = Annotated[str, _allowed("https://host/path without a last /", r"^(https?://[^/\s]+(/[^\s?#]*[^/\s?#])?)?$")]
OidcRoles = Annotated[str, _allowed("group=role pairs, separated by commas", rf"^([^=,]+={_ROLE}(,[^=,]+={_ROLE})*)?$")]
UrlPath = Annotated[str, _allowed("a path such as /paceline, or nothing", r"^(/[A-Za-z0-9._~-]+)*$")]
StatsdAddress = Annotated[
    str,
    AfterValidator(_statsd),
    _allowed("host:port, unix:///path, or nothing", r"^(([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}|unix:///\S+)?$"),
]
HttpUrl = Annotated[str, _allowed("an address such as http://localhost:4318", r"^(https?://[^\s/]+(/\S*)?)?$")]
LogsUrl = Annotated[str, AfterValidator(_data_url), _allowed("a folder or a URL such as s3://bucket/logs, without * ? [ ] { }")]
LineageUrl = Annotated[
    str, _allowed("an address such as http://localhost:5000, or file:///path", r"^(https?://[^\s/]+(/\S*)?|file:///\S+)?$")
]
MetricPrefix = Annotated[str, _allowed("letters, digits, _ and ., such as airflow", r"^[A-Za-z_][A-Za-z0-9_.]*$")]
DataUrl = Annotated[
    str, AfterValidator(_data_url), _allowed("a folder or a URL such as s3a://bucket/paceline, without * ? [ ] { }")
]
WarehouseUrl = Annotated[
    str, AfterValidator(_data_url), _allowed("a folder or a URL such as s3://bucket/warehouse, without * ? [ ] { }, or nothing")
]
CatalogName = Annotated[str, _allowed("letters, digits and _, such as lake", r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
StorageOptions = Annotated[str, _allowed("key=value pairs, separated by spaces", r"^(\s*[^\s=]+=\S*)*\s*$")]
Networks = Annotated[str, AfterValidator(_networks), _allowed("IP addresses and networks such as 10.0.0.0/8, separated by commas")]
BundleSources = Annotated[
    str,
    AfterValidator(_bundle_sources),
    _allowed("name=URL pairs, separated by spaces or lines, such as sales=git+https://host/sales.git#ref=main"),
]
FernetKeys = Annotated[
    str, AfterValidator(_fernet_keys), _allowed("Fernet keys (32 bytes in URL-safe base64), several with commas")
]


def folder_url(place: str) -> str:
    """The URL of a folder, given as a URL or as a path, without a trailing slash."""
    return place.rstrip("/") if "://" in place else f"file://{Path(place).expanduser().absolute()}"


def in_words(schema: dict[str, Any]) -> str:
    """Describe the allowed values of a JSON schema."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "string":
        return "a path" if schema.get("format") == "path" else "a text"
    number = "a whole number" if schema["type"] == "integer" else "a number"
    if "maximum" in schema:
        return f"{number} from {schema['minimum']:g} to {schema['maximum']:g}"
    return f"{number} above 0" if "exclusiveMinimum" in schema else f"{number} of at least {schema['minimum']:g}"
