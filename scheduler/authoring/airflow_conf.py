"""`conf`: the options that files for Airflow read from its configuration."""

import json
import os
import pkgutil
from typing import Any

from scheduler.exceptions import SettingsError

_TRUE = frozenset({"t", "true", "1", "yes", "on"})
_FALSE = frozenset({"f", "false", "0", "no", "off"})
_MISSING: Any = object()
#: Options that Airflow's example files read without a fallback, with the values that they have in Airflow.
_DEFAULTS = {("kubernetes_executor", "worker_container_repository"): "", ("kubernetes_executor", "worker_container_tag"): ""}


class AirflowConf:
    """Reads options as Airflow does: `conf.get("core", "parallelism", fallback=32)`.

    An option is the environment variable AIRFLOW__SECTION__OPTION, else PACELINE_SECTION_OPTION, which Paceline's own
    settings also use, else the fallback. SettingsError if it is none of them.
    """

    def get(self, section: str, key: str, fallback: Any = _MISSING, **_others: Any) -> Any:
        """The text of an option."""
        for name in _names(section, key):
            if name in os.environ:
                return os.environ[name]
        if fallback is not _MISSING:
            return fallback
        if (section, key) in _DEFAULTS:
            return _DEFAULTS[section, key]
        airflow, ours = _names(section, key)
        raise SettingsError(f"There is no option [{section}] {key}; set {airflow} or {ours}, or pass fallback=...")

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
        except ValueError as error:
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
        """Whether an option is set."""
        return any(name in os.environ for name in _names(section, option))

    def getsection(self, section: str) -> dict[str, Any]:
        """The options of a section that are set, by name."""
        airflow, ours = _names(section, "")
        named = {
            prefix: {n.removeprefix(prefix).lower(): v for n, v in os.environ.items() if n.startswith(prefix)}
            for prefix in (ours, airflow)
        }
        return {**named[ours], **named[airflow]}

    def _number(self, kind: Any, section: str, key: str, **others: Any) -> Any:
        value = self.get(section, key, **others)
        try:
            return None if value is None else kind(value)
        except (TypeError, ValueError):
            raise SettingsError(f"The option [{section}] {key} must be a number, not {value!r}.") from None


def _names(section: str, key: str) -> tuple[str, str]:
    return f"AIRFLOW__{section}__{key}".upper().replace(".", "_"), f"PACELINE_{section}_{key}".upper().replace(".", "_")


conf = AirflowConf()
