"""`paceline config`: shows and validates the settings."""

from __future__ import annotations

import difflib
from typing import Any

import click

from scheduler.cli import lazy, options, output


@click.group(cls=lazy.NounGroup)
def config() -> None:
    """Show and validate the settings."""


@config.command()
@options.as_table
def show() -> None:
    """Show every setting with its value and source. Passwords are masked."""
    from scheduler.settings.model import effective, keys, sources

    settings = options.settings()
    values = {key: effective(settings, key) for key in keys()}
    if output.json_wanted():
        nested: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            nested.setdefault(section, {})[name] = value
        output.print_json(nested)
        return
    origin = sources()
    rows = [{"setting": key, "value": value, "from": origin.get(key, "default")} for key, value in values.items()]
    output.table(rows, ["setting", "value", "from"], empty="")


@config.command()
@click.argument("key")
@options.as_json
def get(key: str) -> None:
    """Print the value of one setting, given as <section>.<key> or as its environment variable."""
    from scheduler.settings.model import effective, environment_names, keys

    known = {name: ".".join(place) for name, place in environment_names().items()} | {name: name for name in keys()}
    if key not in known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else "`paceline config show` lists every key."
        raise click.UsageError(f"{key} is not a setting; {hint}")
    value = effective(options.settings(), known[key])
    output.result(value, "true" if value is True else "false" if value is False else value)


@config.command()
@options.as_json
def check() -> None:
    """Validate every setting. Exit 0 if all are valid, else 2 with the key, the value and the allowed values."""
    from scheduler.settings.model import keys, sources

    options.settings()
    origin = sources()
    text = f"All settings are valid; {len(origin)} of {len(keys())} are set, the others have their defaults."
    output.result({"ok": True, "set": origin}, text)
