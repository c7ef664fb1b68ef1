"""`paceline users`: manages the accounts of the web UI and the REST API."""

import click

from paceline.exceptions import PacelineError
from scheduler.cli import lazy, options, output

ROLE = click.Choice(["viewer", "operator", "admin"])
DAY_S = 86_400.0


@click.group(cls=lazy.NounGroup)
def users() -> None:
    """Create, list and delete web accounts, and manage their passwords and API tokens."""


@users.command()
@click.argument("name")
@click.option("--role", type=ROLE, help="Rights on everything: a viewer reads, an operator also changes runs, an admin everything.")
@click.option("--tag", "tags", multiple=True, metavar="TAG=ROLE", help="Rights on the DAGs with this tag. Can be repeated.")
@click.option("--password", help="The password, or - to read it from standard input. Default: a random one, which is printed.")
@options.as_json
def create(name: str, *, role: str | None, tags: tuple[str, ...], password: str | None) -> None:
    """Create an account. Without --role, it has only the rights of --tag."""
    from scheduler.actions import installation
    from scheduler.store.accounts import accounts

    chosen = accounts.generated() if password is None else options.typed(password)
    generated = chosen if password is None else None
    by_tag = dict(map(_tag, tags))
    installation.create_account(options.actor(), name, chosen, role=role, tags=by_tag)
    text = f"Account {name} is created." + (f" Its password is {generated}" if generated else "")
    output.result({"name": name, "role": role, "tags": by_tag, "password": generated}, text)


@users.command("list")
@options.as_table
def list_() -> None:
    """List all accounts with their rights."""
    from scheduler.store.accounts import accounts

    rows = options.transact(accounts.accounts)
    if not output.json_wanted():
        rows = [row | {"tags": ", ".join(f"{tag}={role}" for tag, role in sorted(row["tags"].items()))} for row in rows]
    output.listing(rows, ["name", "role", "tags", "sessions", "tokens", "created_at"], empty="No accounts.")


@users.command()
@click.argument("name")
@click.option("--password", help="The password, or - to read it from standard input. Default: a random one, which is printed.")
def password(name: str, password: str | None) -> None:
    """Change a password. All sessions of the account end."""
    from scheduler.actions import installation
    from scheduler.store.accounts import accounts

    new = accounts.generated() if password is None else options.typed(password)
    installation.set_password(options.actor(), name, new)
    click.echo(f"The password of {name} is changed." + (f" It is {new}" if password is None else ""))


@users.command()
@click.argument("name")
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), default=365.0, show_default=True, help="Days until the token expires."
)
@click.option("--label", default="cli", show_default=True, help="A name to recognize the token by.")
@click.option("--revoke", is_flag=True, help="Delete the tokens with this label instead.")
@options.yes
@options.as_json
def token(name: str, *, days: float, label: str, revoke: bool, yes: bool) -> None:
    """Create an API token of an account and print it once. Use it as `Authorization: Bearer TOKEN`."""
    from scheduler.actions import installation

    if revoke:
        options.confirm(f"Delete the tokens {label} of {name}?", yes)
        installation.revoke_tokens(options.actor(), name, label)
        click.echo(f"The tokens {label} of {name} are deleted.")
        return
    issued, expires_at = installation.create_token(options.actor(), name, lasts_s=days * DAY_S, label=label)
    output.result({"name": name, "label": label, "token": issued, "expires_at": expires_at}, issued)


@users.command()
@click.argument("name")
@options.yes
def delete(name: str, *, yes: bool) -> None:
    """Delete an account with its sessions and tokens."""
    from scheduler.actions import installation

    options.confirm(f"Delete account {name}?", yes)
    installation.delete_account(options.actor(), name)
    click.echo(f"Account {name} is deleted.")


def _tag(text: str) -> tuple[str, str]:
    from scheduler.store.accounts import accounts

    tag, _, role = text.rpartition("=")
    if not tag or role not in accounts.ROLES:
        raise PacelineError(f"--tag {text!r} must be TAG=ROLE, with one of the roles {', '.join(accounts.ROLES)}.")
    return tag, role
