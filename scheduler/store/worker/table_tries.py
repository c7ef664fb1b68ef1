"""What a pool process stores about the tables of its try, beside the report that publishes them."""

from scheduler.store.tables import tries
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import WorkerConnection


def give_token(connection: WorkerConnection, claim: Claim) -> str:
    """Give the claimed try a new token for the catalog. Its first one also pins it to the last publication. StaleTryError."""
    token = tries.new_token()
    connection.write(claim.writer, tries.GIVE, (tries.hashed(token), claim.id, claim.try_number, claim.dispatch_id))
    return token


def continues(connection: WorkerConnection, claim: Claim) -> bool:
    """Whether an earlier dispatch of the claimed try was given a token. Then this dispatch publishes its tables. StaleTryError."""
    return bool(connection.write(claim.writer, tries.CONTINUE, (claim.dispatch_id, claim.id, claim.try_number)))


def take_over(connection: WorkerConnection, claim: Claim) -> bool:
    """Let the claimed try continue with the token of the last one, which its Spark application still uses. StaleTryError."""
    return bool(connection.write(claim.writer, tries.TAKE_OVER, (claim.dispatch_id, claim.try_number, claim.id)))
