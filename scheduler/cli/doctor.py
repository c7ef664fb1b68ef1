"""`paceline doctor`: checks servers, versions and configuration, and shows fixes."""

from typing import TYPE_CHECKING

import click

from scheduler.cli import health, options, output
from scheduler.exceptions import SettingsError

if TYPE_CHECKING:
    from scheduler.cli.checks import Finding


@click.command()
@click.option("--role", type=click.Choice(health.ROLES), help="Check only the processes of this role on this machine.")
@click.option("--deep", "deep_wanted", is_flag=True, help="Check the invariants of the database and the broker.")
@options.as_json
def doctor(role: str | None, deep_wanted: bool, json_wanted: bool) -> None:
    """Check servers, versions and configuration, and show how to fix each problem. Exit 1 if there is a problem.

    With --role, the result is the same as GET /health of these processes; use it as the health check of a container. With --deep,
    the command lists each row that violates an invariant for longer than schedulers need to repair it.
    """
    if role is not None and not deep_wanted:
        # This is the health check of containers, every few seconds, so it does not import the modules of the other checks.
        health.examine(role, json_wanted=json_wanted)
        return
    from scheduler.cli import checks, deep

    if deep_wanted:
        click.get_current_context().exit(0 if deep.examine(json_wanted=json_wanted) else 1)
    try:
        findings = checks.examine(options.settings())
    except SettingsError as error:
        findings = [checks.bad("settings", str(error), "Correct it; `paceline config check` validates all settings.")]
    healthy = all(finding.ok for finding in findings)
    if json_wanted:
        rows = [finding.to_dict() for finding in findings]
        output.print_json({"ok": healthy, "versions": checks.versions(), "checks": rows})
    else:
        _print(findings, checks.versions(), healthy=healthy)
    click.get_current_context().exit(0 if healthy else 1)


def _print(findings: "list[Finding]", versions: dict[str, str], *, healthy: bool) -> None:
    from rich.text import Text

    screen = output.console()
    screen.print(Text(", ".join(f"{name} {version}" for name, version in versions.items()), style="dim"))
    for finding in findings:
        mark = Text("ok       ", style="green") if finding.ok else Text("PROBLEM  ", style="bold red")
        screen.print(mark + Text(f"{finding.check}: {finding.message}"))
        if not finding.ok:
            screen.print(Text(f"         {finding.fix}", style="yellow"))
    problems = sum(not finding.ok for finding in findings)
    screen.print("Nothing to fix." if healthy else f"{problems} to fix.")
