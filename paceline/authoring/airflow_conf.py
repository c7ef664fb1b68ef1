"""`conf`: the options that files for Airflow read from its configuration."""

from __future__ import annotations

import json
import os
import pkgutil
from typing import Any, Protocol

from paceline.exceptions import SettingsError

_TRUE = frozenset({"t", "true", "1", "yes", "on"})
_FALSE = frozenset({"f", "false", "0", "no", "off"})
_MISSING: Any = object()
#: Sections about the servers of Airflow and its secrets.
SERVERS = frozenset({"database", "celery", "secrets", "sentry", "webserver", "fab", "kerberos"})


class Options(Protocol):
    """The source of options that no environment variable sets, see settings/airflow_options."""

    def known(self, section: str, key: str) -> str | None:
        """The value of an option as text; None if it has none."""

    def names(self, section: str) -> set[str]:
        """The options of a section that may have a value."""


class AirflowConf:
    """Reads options as Airflow does: `conf.get("core", "parallelism")`.

    An option is the environment variable AIRFLOW__SECTION__OPTION, else PACELINE_SECTION_OPTION, else the setting of Paceline
    that corresponds to it, else Airflow's default, else the fallback. SettingsError, which is AirflowConfigException, if it is
    none of them. Passwords and URLs of servers are no options.
    """

    #: The options with a value but no environment variable. The process that loads DAG files sets it, since it has the settings.
    options: Options | None = None

    def get(self, section: str, key: str, fallback: Any = _MISSING, **_others: Any) -> Any:
        """The text of an option."""
        for name in _names(section, key):
            if name in os.environ:
                return os.environ[name]
        known = self._known(section, key)
        if known is not None:
            return known
        if fallback is not _MISSING:
            return fallback
        airflow, ours = _names(section, key)
        if section.partition("_")[0] in SERVERS or key.endswith(("_key", "_password", "_secret", "_conn")):
            advice = "addresses and secrets of servers are not for DAG files; a task reads what it needs from a connection"
        else:
            advice = (
                f"set {airflow} or {ours} for schedulers and workers, pass fallback=..., or read a Variable or a file of your own"
            )
        raise SettingsError(f"There is no option [{section}] {key}: {advice}.")

    def getboolean(self, section: str, key: str, **others: Any) -> bool:
        """An option as a bool."""
        value = self.get(section, key, **others)
        text = str(value).strip().lower()
        if text not in _TRUE | _FALSE:
            raise SettingsError(f"The option [{section}] {key} must be true or false, not {value!r}.")
        return text in _TRUE

    def getint(self, section: str, key: str, **others: Any) -> Any:
        """An option as an int; a fallback that is None stays None."""
        return self._number(int, section, key, **others)

    def getfloat(self, section: str, key: str, **others: Any) -> Any:
        """An option as a float; a fallback that is None stays None."""
        return self._number(float, section, key, **others)

    def getjson(self, section: str, key: str, **others: Any) -> Any:
        """An option that is JSON, as its value."""
        value = self.get(section, key, **others)
        try:
            return json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"The option [{section}] {key} is not JSON: {error}.") from None

    def getlist(self, section: str, key: str, delimiter: str = ",", **others: Any) -> Any:
        """An option with several values as a list."""
        value = self.get(section, key, **others)
        return [part.strip() for part in value.split(delimiter)] if isinstance(value, str) else value

    def getimport(self, section: str, key: str, **others: Any) -> Any:
        """The object whose dotted name an option is; None if it is empty. SettingsError if it cannot be imported."""
        value = self.get(section, key, **others)
        try:
            return pkgutil.resolve_name(value) if value else None
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(f"The option [{section}] {key} names {value!r}, which cannot be imported: {error}.") from None

    def get_mandatory_value(self, section: str, key: str, **others: Any) -> str:
        """The text of an option; SettingsError if it is None."""
        value = self.get(section, key, **others)
        if value is None:
            raise SettingsError(f"The option [{section}] {key} has no value.")
        return str(value)

    def has_option(self, section: str, option: str, **_others: Any) -> bool:
        """Whether an option has a value without a fallback."""
        return any(name in os.environ for name in _names(section, option)) or self._known(section, option) is not None

    def getsection(self, section: str) -> dict[str, Any]:
        """The options of a section that have a value, by name."""
        airflow, ours = _names(section, "")
        names = set() if self.options is None else self.options.names(section)
        known = {name: value for name in sorted(names) if (value := self._known(section, name)) is not None}
        named = {
            prefix: {n.removeprefix(prefix).lower(): v for n, v in os.environ.items() if n.startswith(prefix)}
            for prefix in (ours, airflow)
        }
        return {**known, **named[ours], **named[airflow]}

    def _known(self, section: str, key: str) -> str | None:
        return None if self.options is None else self.options.known(section, key)

    def _number(self, kind: Any, section: str, key: str, **others: Any) -> Any:
        value = self.get(section, key, **others)
        try:
            return None if value is None else kind(value)
        except (TypeError, ValueError):
            raise SettingsError(f"The option [{section}] {key} must be a number, not {value!r}.") from None


def _names(section: str, key: str) -> tuple[str, str]:
    return f"AIRFLOW__{section}__{key}".upper().replace(".", "_"), f"PACELINE_{section}_{key}".upper().replace(".", "_")


conf = AirflowConf()
