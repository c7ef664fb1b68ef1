"""The sources of settings: the environment, then the file, then the defaults. Each value has the name of its source.

`PACELINE_<SECTION>_<KEY>` overrides `$PACELINE_CONFIG` or `config/paceline.toml`, which overrides the defaults in model.py.
PACELINE_HOME and PACELINE_DAGS_FOLDER are short names of common settings.
An empty environment variable counts as unset, because compose files set such variables.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.exceptions import SettingsError
from scheduler.process import fault_points

#: The keys of every section.
Layout = Mapping[str, tuple[str, ...]]

PREFIX = "PACELINE_"
#: Names of settings that do not have the form PACELINE_<SECTION>_<KEY>.
SHORT_NAMES = {"PACELINE_HOME": ("paths", "home"), "PACELINE_DAGS_FOLDER": ("paths", "dags_folder")}
#: Not settings: the name of the file, the web process of `paceline deploy` and its token, the passwords that docker-compose.yml
#: puts into URLs, the images of Compose files, and the faults of a test.
PASSWORDS = (
    "POSTGRES", "SCHEDULER", "WORKER", "WEB", "FLOWER", "SPARK", "REDIS", "REDIS_SCHEDULER", "REDIS_WORKER", "REDIS_WEB",
    "REDIS_FLOWER",
)  # fmt: skip
IMAGES = frozenset({"PACELINE_IMAGE", "PACELINE_PYTHON_IMAGE", "PACELINE_POSTGRES_IMAGE", "PACELINE_REDIS_IMAGE"})
COMMAND_NAMES = frozenset({"PACELINE_CONFIG", "PACELINE_URL", "PACELINE_TOKEN"})
#: Of an application on Spark, see paceline/authoring/running.py.
APPLICATION_NAMES = frozenset({"PACELINE_TABLES_URI", "PACELINE_TABLES_TOKEN"})
OTHER_NAMES = fault_points.NAMES | COMMAND_NAMES | APPLICATION_NAMES | {f"PACELINE_{user}_PASSWORD" for user in PASSWORDS} | IMAGES
#: Not settings either: PACELINE_VAR_<KEY> is a variable and PACELINE_CONN_<ID> a connection. They override those in the store.
VARIABLE_PREFIX, CONNECTION_PREFIX = "PACELINE_VAR_", "PACELINE_CONN_"
#: The prefixes of Airflow are read too, if there is no variable of Paceline.
VARIABLE_PREFIXES, CONNECTION_PREFIXES = (VARIABLE_PREFIX, "AIRFLOW_VAR_"), (CONNECTION_PREFIX, "AIRFLOW_CONN_")
STORE_PREFIXES = (*VARIABLE_PREFIXES, *CONNECTION_PREFIXES)
DEFAULT_FILE = "config/paceline.toml"


def is_setting(name: str) -> bool:
    """Whether an environment variable is a setting, known or unknown."""
    return name.startswith(PREFIX) and name not in OTHER_NAMES and not name.startswith(STORE_PREFIXES)


def dotted(layout: Layout) -> list[str]:
    """Return all settings as `<section>.<key>`, in order of definition."""
    return [f"{section}.{key}" for section, keys in layout.items() for key in keys]


def environment_names(layout: Layout) -> dict[str, tuple[str, str]]:
    """Return the environment variables of all settings, each with its section and key."""
    names = {f"{PREFIX}{section}_{key}".upper(): (section, key) for section, keys in layout.items() for key in keys}
    return names | SHORT_NAMES


def read(environ: Mapping[str, str], layout: Layout) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the values of the file and the environment by section, and the source of each `<section>.<key>`.

    SettingsError names an unknown section or environment variable, or a file that cannot be read.
    """
    path = Path(environ.get("PACELINE_CONFIG") or DEFAULT_FILE).expanduser()
    values = _file_values(path, layout, required=bool(environ.get("PACELINE_CONFIG")))
    origin = {f"{section}.{key}": str(path) for section, keys_ in values.items() for key in keys_}
    known = environment_names(layout)
    for name, value in environ.items():
        if not is_setting(name):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`paceline config show` lists every key."
            raise SettingsError(f"The environment variable {name} is not a setting; {hint}")
        if value:
            section, key = known[name]
            values.setdefault(section, {})[key] = value
            origin[f"{section}.{key}"] = name
    return values, origin


def nearest_key(key: str, layout: Layout) -> str:
    """Suggest a replacement for an unknown `<section>.<key>`."""
    section, _, name = key.partition(".")
    near = difflib.get_close_matches(name, layout[section], 1)
    return f"did you mean {near[0]}?" if near else f"[{section}] has {', '.join(layout[section])}."


def _file_values(path: Path, layout: Layout, *, required: bool) -> dict[str, dict[str, Any]]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise SettingsError(f"PACELINE_CONFIG names {path}, which does not exist.") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as TOML: {error}.") from None
    for name, value in values.items():
        if isinstance(value, dict) and name in layout:
            continue
        sections = list(layout)
        if not isinstance(value, dict):
            homes = [key for key in dotted(layout) if key.endswith(f".{name}")]
            hint = f"put it under [{homes[0].split('.')[0]}]." if homes else f"the sections are {', '.join(sections)}."
            raise SettingsError(f"{name} in {path} is outside its section; {hint}")
        near = difflib.get_close_matches(name, sections, 1)
        hint = f"did you mean [{near[0]}]?" if near else f"the sections are {', '.join(sections)}."
        raise SettingsError(f"[{name}] in {path} is not a section; {hint}")
    return values
