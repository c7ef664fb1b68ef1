"""The cause of a failure on Spark, in one or two sentences, from pages of Java output. Pure."""

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from workers.process.logs import OUR_FOLDERS

#: The maximum length of a cause; the log has the rest.
MAX_CHARACTERS = 600

#: A line of Spark's log, which ends an exception before it.
LOG_LINE = re.compile(r"\d\d(?:\d\d)?[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d\S* [A-Z]+ ")
TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<where>.+))?')
KIND = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:?)$")
JAVA_KIND = re.compile(r"(?:^|\n)(?:: |Caused by: |Exception in thread \"[^\"]*\" )(?P<kind>[\w.$]+)(?:: (?P<message>[^\n]*))?")
#: A message that only means that Spark had ended before.
AFTERMATH = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext\.dagScheduler\(\)\" is null|Answer from Java side is empty"
    r"|Error while sending or receiving|Connection refused|'NoneType' object has no attribute '(?:sc|_jsc|_jvm)'"
)
#: The folder of tables in the temporary folder of a JVM or driver. It is a file there, because the tables would end with it.
NO_WAREHOUSE = "spark-warehouse"
NO_TABLES = (
    "A table that is saved only by name would be removed when this task ends: write it to a path, return the DataFrame, or name a "
    "persistent catalog, or a folder in spark.sql.warehouse.dir, in the conf."
)
#: What precedes the traceback of a Python worker, or of the function of a streaming query, in the message of an exception.
INNER = re.compile(r"PythonException|STREAM_FAILED")
#: Code that is not the author's.
LIBRARY = re.compile(
    r"site-packages/|dist-packages/|pyspark\.zip/|py4j-[\d.]+-src\.zip/|/pyspark/|/lib/python\d|^<frozen |^<string>"
)


@dataclass(frozen=True, slots=True)
class Raised:
    """The last exception in a text. `place` is the last line of the author's code in its traceback."""

    kind: str
    message: str
    place: str

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]

    @property
    def in_java(self) -> bool:
        """Whether it is only py4j's wrapper of an exception of the JVM."""
        return self.name in {"Py4JJavaError", "Py4JError", "Py4JNetworkError"}


def of_error(error: BaseException, output: str = "") -> str | None:
    """The cause of the exception of a task; `output` is that of its JVM. None if neither shows a cause."""
    raised = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [raised]
    for link in chain:
        if link is not None:
            link.stack[:] = [frame for frame in link.stack if not frame.filename.startswith(OUR_FOLDERS)]
            chain += [link.__cause__, link.__context__]
    lines = raised.format() if raised.stack else [f"{TRACEBACK}\n", *raised.format_exception_only()]
    return of_text(f"{output}\n{''.join(lines)}")


def sentence(message: str) -> str:
    """The cause in the message of one exception."""
    return _short(_known(message)) or _sentence(message)


def first_line(error: BaseException) -> str:
    """The class of an exception and the first line of its message, for the log of a worker."""
    try:
        message = str(error).partition("\n")[0][:MAX_CHARACTERS]
    except Exception:  # exceptions of PySpark get their message from the JVM
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def of_text(text: str) -> str | None:
    """The cause in the output of an application: from its last exception, else from the whole text."""
    text = "\n".join(text.splitlines())
    raised = _last_raised(text)
    if raised is None:
        return _short(_known(text) or _of_java(text) or _of_launcher(text))
    if AFTERMATH.search(raised.message):
        cause = _known(text) or _of_java(f"\n{raised.message}")
    else:
        cause = _known(raised.message) or (_of_java(f"\n{raised.message}") if raised.in_java else None)
    if cause is None:
        sentence = _sentence(raised.message)
        cause = f"{raised.name}: {sentence}" if sentence else raised.name
    return _short(f"{cause}{raised.place}")


def _last_raised(text: str) -> Raised | None:
    """The innermost exception of the last chain: a PythonException contains the traceback of the Python worker, which is last."""
    last: Raised | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() == TRACEBACK or (line.endswith(TRACEBACK) and INNER.search(line)):
            last = _raised(lines[number + 1 :]) or last
    return last


def _raised(lines: list[str]) -> Raised | None:
    place = ""
    for number, line in enumerate(lines):
        frame = FRAME.match(line)
        if frame is not None:
            if not LIBRARY.search(frame["file"]):
                code = _code(lines[number + 1 : number + 2])
                place = f" ({frame['file'].rpartition('/')[2]} line {frame['line']}{code})"
        elif not line.startswith(" ") and line.strip("~^"):  # the marks below a line of a query are not indented
            head = KIND.match(line)
            if head is None or LOG_LINE.match(line):
                return None
            return Raised(head["kind"], _message(head["message"] or "", lines[number + 1 :]), place)
    return None


def _code(following: list[str]) -> str:
    """The line of code that Python shows below a frame."""
    for line in following:
        if line.startswith("    ") and not FRAME.match(line) and line.strip(" ~^"):
            return f": {line.strip()[:100]}"
    return ""


def _message(first: str, rest: list[str]) -> str:
    parts = [first]
    for line in rest:
        if LOG_LINE.match(line) or line.strip() == TRACEBACK or line.startswith(("During handling of", "The above exception")):
            break
        parts.append(line)
    return "\n".join(parts).strip("\n")


def _sentence(message: str) -> str:
    """The message of an exception, without plans, SQL and stack traces."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    place = re.search(r"\(line \d+, pos \d+\)$", first)
    sentence = re.split(r"\s+SQLSTATE: ", first)[0].rstrip(";: ")
    return f"{sentence} {place[0]}" if place and place[0] not in sentence else sentence


def _of_java(text: str) -> str | None:
    """The last exception of the JVM; of nested ones the outermost, which user code caused."""
    heads = [found for found in JAVA_KIND.finditer(text) if not text[found.start() :].lstrip("\n").startswith("Caused by")]
    if not heads:
        return None
    kind, message = heads[-1]["kind"].rpartition(".")[2], _sentence(heads[-1]["message"] or "")
    return f"{kind}: {message}" if message else kind


def _of_launcher(text: str) -> str | None:
    """The error of spark-submit before a JVM runs."""
    match = re.search(r"(?m)^Error: (.+)$", text)
    return None if match is None else match[1]


def _short(cause: str | None) -> str | None:
    if cause is None or len(cause) <= MAX_CHARACTERS:
        return cause
    return cause[: MAX_CHARACTERS - 1] + "…"


def _known(text: str) -> str | None:
    """The sentence of the first of RULES that matches."""
    for pattern, sentence in RULES:
        found = re.search(pattern, text)
        if found is not None:
            return sentence(found) if callable(sentence) else sentence.format(*found.groups())
    return None


def _executor_memory(found: re.Match[str]) -> str:
    if found[1] == "driver":
        return DRIVER_MEMORY
    return f"Executor {found[1]} ran out of memory: raise spark.executor.memory, or make more and smaller partitions."


def _executor_lost(found: re.Match[str]) -> str:
    times, executor, reason = found[1], found[2], found[3].strip().rstrip(".")
    killed = (
        " (killed, most often for using more memory than it may: raise spark.executor.memoryOverhead)" if "137" in reason else ""
    )
    return f"Executor {executor} was lost: {reason}{killed}; {times} tries of the task of Spark failed."


def _heap_too_small(found: re.Match[str]) -> str:
    has, needs = int(found[2]) >> 20, int(found[3]) >> 20
    who, key = ("The driver has", "driver") if found[1] == "System" else ("Executors have", "executor")
    return f"{who} a heap of {has} MB and Spark needs {needs} MB: raise spark.{key}.memory to 512m or more."


def _missing_class(found: re.Match[str]) -> str:
    name = next(part for part in found.groups() if part).replace("/", ".")
    return f"Class {name} is missing: name its package in spark.jars.packages, or its jar in spark.jars."


DRIVER_MEMORY = "The driver ran out of memory: raise spark.driver.memory, or collect and broadcast less."

#: Patterns with their sentences, in which {0} is the first group. They go from the specific to the general: an executor that ran
#: out of memory is also a lost executor and a failed job.
RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (rf"/paceline-(?:jvm|spark)-[^/\s]*/{NO_WAREHOUSE}\b", NO_TABLES),
    (
        r"(Total size of serialized results of [^\n]*? is bigger than \S+ \([^)]*\))",
        "{0}: collect fewer rows into Python, or raise spark.driver.maxResultSize.",
    ),
    (r"Lost task [^\n]*executor (\w+)\)[^\n]*java\.lang\.OutOfMemoryError", _executor_memory),
    # 52 is the exit code of an executor that ran out of heap (SparkExitCode.OOM).
    (r"ExecutorLostFailure \(executor (\w+) exited[^\n]*(?:code|status:?) 52\b", _executor_memory),
    (r"java\.lang\.OutOfMemoryError", DRIVER_MEMORY),
    (r"(System|Executor) memory (\d+) must be at least (\d+)", _heap_too_small),
    (
        r"[Cc]ontainer killed by YARN for exceeding (?:physical |virtual )?memory limits|beyond the 'PHYSICAL' memory limit",
        "YARN killed a container that used more memory than it may: raise spark.executor.memoryOverhead (for the driver "
        "spark.driver.memoryOverhead).",
    ),
    (
        r"failed (\d+) times, most recent failure: [^\n]*ExecutorLostFailure \(executor (\w+) exited[^)]*\) Reason: ([^\n]*)",
        _executor_lost,
    ),
    (r"No space left on device", "The disk is full: free space in spark.local.dir and where the task writes."),
    (
        r"\bInvalid table identifier: (\w+)(?![\w.])",
        "The table {0} has no namespace: write one, such as sales.{0}, after `create namespace if not exists sales`.",
    ),
    (
        r"DATA_SOURCE_NOT_FOUND\][^\n]*data source: ([^\s,]+?)\.? ",
        "Spark has no data source {0}: name its package in spark.jars.packages, or correct the format.",
    ),
    (
        r"ClassNotFoundException: (?:Class )?([\w.$]+)|NoClassDefFoundError: ([\w./$]+)"
        r"|Failed to load class ([\w.$]+?)\.?(?:\s|$)",
        _missing_class,
    ),
    (
        r"Python worker exited unexpectedly|Python worker failed to connect back",
        "A Python worker of Spark died: out of memory (spark.executor.pyspark.memory), killed, or a fault in native code "
        "(spark.python.worker.faulthandler.enabled=true shows where).",
    ),
    (r"All masters are unresponsive", "The Spark master does not answer: check its address, and whether it runs."),
    (
        r"Cannot call methods on a stopped SparkContext|SparkContext was shut down"
        r"|'NoneType' object has no attribute '(?:sc|_jsc)'",
        "The SparkContext was stopped while it was still needed.",
    ),
    (
        r"INVALID_HANDLE\.SESSION_(?:CLOSED|NOT_FOUND|CHANGED)|\[NO_ACTIVE_SESSION\]|incorrect server side session identifier",
        "The session of this task on the Connect server is closed: the server was restarted, another try took over, the task "
        "stopped it, or it was idle for longer than spark.connect.session.manager.defaultSessionTimeout.",
    ),
    (r"StatusCode\.UNAVAILABLE", "The Connect server does not answer: check that it runs, and that this worker reaches it."),
    (
        r"StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED)",
        "The Connect server does not accept the token: correct the password of the connection.",
    ),
    (r"\[INVALID_CONF_VALUE[.\w]*\] ([^\n]+?)(?: SQLSTATE|\n|$)", "{0}"),
    (r"Invalid (?:maximum|initial) heap size: -Xm[xs](\S+)", "Java cannot have a heap of {0!r}: write it as 4g or 512m."),
    (r"can't open file '([^']+)': \[Errno 2\]", "There is no file {0}."),
)
