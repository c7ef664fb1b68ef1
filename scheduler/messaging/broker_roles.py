"""What Paceline may do in Redis: a user for each role, with the commands, keys and channels that the role uses.

None may run a script, nor FLUSHALL, CONFIG, DEBUG, KEYS, MONITOR, SHUTDOWN or ACL. config/redis.conf, with which docker-compose.yml
starts Redis, is generated from this list. Redis 7 or newer reads it: a selector, in parentheses, holds commands together with the
keys or channels that they may touch.
"""

#: What every client needs. AUTH, HELLO and QUIT take no right; CLIENT SETINFO, unknown to Redis 7.0, may fail.
CONNECT = "+ping +select"
#: The report of what waits for each queue, which schedulers write.
REPORT = "paceline:queues"
#: The wake-ups, the epoch and the lock of the search for lost messages.
OWN_KEYS = "paceline:*"
WAKE = f"(~{OWN_KEYS} +zadd +bzpopmin +zpopmin)"
#: Queues are lists with the names that authors give them.
PUBLISH = "(~* +lpush)"
#: kombu's table of which queue belongs to which exchange, and the lists that answers to remote control arrive in.
BINDINGS = "(~_kombu.binding* +sadd +srem +smembers +sismember +exists +multi +exec)"
REPLIES = "*.reply.celery.pidbox*"
#: Remote control goes out on the first, events of workers on the second; the number is that of the database.
CONTROL, EVENTS = "/0.celery.pidbox", "/0.celeryev/*"

ROLES = {
    # Publishes, wakes and is woken, and looks which messages are lost.
    "paceline_scheduler": (
        CONNECT, "+info", "+multi +exec +unwatch", PUBLISH, WAKE, "(~* +llen +lrange +type)",
        f"(~{OWN_KEYS} +get +set +del +watch +pttl)",
    ),
    # Takes messages and publishes those that follow; hears remote control, but cannot send it. Waiters are workers too.
    "paceline_worker": (
        CONNECT, "+multi +exec +unsubscribe +punsubscribe", PUBLISH, WAKE, BINDINGS, "(~* +brpop +rpop +llen +type)",
        # For keys of the wrong type, which a task can make by LPUSH, see broker_keys.
        "(~_kombu.binding* ~paceline:waiters +del)", f"(&{CONTROL} +psubscribe)", f"(&{EVENTS} +publish)",
    ),
    # Reads the lengths of queues and the events of workers, sends remote control and takes the answers. It cannot publish a task.
    "paceline_flower": (
        CONNECT, "+info +multi +exec +unsubscribe +punsubscribe", BINDINGS, "(~* +llen)", f"(~{REPORT} +get)",
        f"(~{REPLIES} +brpop +rpop +del)",
        f"(&{EVENTS} +psubscribe)", f"(&{CONTROL} +publish)",
    ),
}  # fmt: skip


def _commands() -> list[str]:
    words = " ".join(rule for rules in ROLES.values() for rule in rules).replace("(", " ").replace(")", " ").split()
    return sorted({word for word in words if word.startswith("+")})


#: The rules of the embedded server's one user. Whoever may open its socket is the user of the stack and could stop the server,
#: so passwords would keep nobody out; but a task cannot empty it, have it write files or reach what was wrong in its Lua.
EMBEDDED = ("~*", "&*", "-@all", *_commands())


def user_line(name: str, password: str) -> str:
    """The line of redis.conf, or of an ACL file, that makes one of these users."""
    return f"user {name} on >{password} resetchannels -@all {' '.join(ROLES[name])}"


def password_variable(name: str) -> str:
    """The environment variable that holds the password of a user."""
    return f"PACELINE_REDIS_{name.removeprefix('paceline_').upper()}_PASSWORD"
