"""The files of a bundle: what belongs to it, and what a hostile folder or archive ends in."""

import gzip
import io
import os
import re
import socket
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import folders

from scheduler.dagfiles import bundle_files
from scheduler.dagfiles.bundle_files import BundleRefusedError, TooLargeError
from scheduler.settings.sections import Bundles
from scheduler.store.dags.bundles import BundleFile

LIMITS = Bundles()
SMALL = Bundles(max_files=5, max_bytes=1000, max_file_bytes=600)


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    """An entry of an archive, as a hostile client writes it."""
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, len(content), link
    return made, content


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """The bytes of an archive that is not packed."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for made, content in entries:
            archive.addfile(made, io.BytesIO(content))
    return target.getvalue()


def read(plain: bytes, limits: Bundles = LIMITS) -> dict[str, BundleFile]:
    return bundle_files.read_archive(io.BytesIO(gzip.compress(plain)), limits)


def refusal(work: Callable[[], object], kind: type[Exception] = BundleRefusedError) -> str:
    """The message of the error, which must be one sentence in one line."""
    with pytest.raises(kind) as caught:
        work()
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and len(text) < 400, text
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files that belong to the bundle, and much that does not."""
    for name in (
        "etl.py", "lib/sql/query.sql", ".env", ".git/config", ".venv/bin/python", "__pycache__/etl.pyc", "lib/old.pyc",
        "node_modules/x/index.js", "env/pyvenv.cfg", "env/lib/site.py", ".airflowignore",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


def of(folder: Path, limits: Bundles = LIMITS) -> dict[str, BundleFile]:
    return bundle_files.read_folder(folder, limits)


def test_a_folder_has_its_files_without_caches_environments_and_hidden_ones(folder: Path) -> None:
    assert [(path, file.is_executable) for path, file in of(folder).items()] == [
        (".airflowignore", False), ("etl.py", False), ("lib/sql/query.sql", False), ("run.sh", True),
    ]  # fmt: skip


def test_an_archive_has_what_was_packed(folder: Path) -> None:
    target = io.BytesIO()
    bundle_files.write_archive(of(folder), target)
    target.seek(0)

    assert bundle_files.read_archive(target, LIMITS) == of(folder)


def test_the_archive_of_tar_has_the_same_files(folder: Path) -> None:
    """Those of `tar czf bundle.tar.gz .`, without the environments, whose folders only tell by a file in them."""
    (folder / "env/pyvenv.cfg").unlink()
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        archive.add(folder, arcname=".")
    target.seek(0)

    assert bundle_files.read_archive(target, LIMITS) == of(folder)


def test_links_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "again.py").symlink_to("etl.py")
    (folder / "shared").symlink_to(folder / "lib")

    found = {path: file.content for path, file in of(folder).items()}

    assert found["again.py"] == b"# etl.py"
    assert found["shared/sql/query.sql"] == b"# lib/sql/query.sql"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/etc/passwd", "leads out of the folder"), ("../..", "leads out of the folder"), ("/dev/null", "leads out of the folder"),
        (".", "a folder around it"), ("lib/../..", "leads out of the folder"), ("nothing", "cannot be read"),
    ],
)  # fmt: skip
def test_a_link_elsewhere_is_refused_by_name(folder: Path, target: str, says: str) -> None:
    (folder / "lib/link").symlink_to(target if target.startswith("/") else f"../{target}")

    message = refusal(lambda: of(folder))

    assert "'lib/link'" in message and says in message


def test_pipes_and_sockets_are_refused_by_name(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert refusal(lambda: of(folder)) == "'pipe' is a FIFO: remove it."
    (folder / "pipe").unlink()
    with folders.short_folder() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "s"))
        assert refusal(lambda: of(short)) == "'s' is a socket: remove it."


@pytest.mark.parametrize(
    "name",
    [b"two\nlines.py", b"tab\t.py", b"\xff.py", "line\u2028.py".encode(), b"x" * 250, b"bell\x07/a.py", "yp\u202e.txt".encode()],
)
def test_bad_names_are_refused(folder: Path, name: bytes) -> None:
    place = os.path.join(os.fsencode(folder), name)  # noqa: PTH118
    os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
    with open(place, "wb"):  # noqa: PTH123
        pass

    assert re.search("rename it|is too long", refusal(lambda: of(folder)))


def test_a_folder_with_too_much_is_refused(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.py").touch()
    assert "more files and folders than bundles.max_files allows 5" in refusal(lambda: of(tmp_path, SMALL), TooLargeError)
    (tmp_path / "0.py").write_bytes(b"x" * 601)
    assert "'0.py' has more bytes than bundles.max_file_bytes" in refusal(lambda: of(tmp_path, SMALL), TooLargeError)
    for number in range(4):
        (tmp_path / f"{number}.py").write_bytes(b"x" * 300)
    assert "bundles.max_bytes allows 1,000" in refusal(lambda: of(tmp_path, SMALL), TooLargeError)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(lambda: of(tmp_path / "nothing"))


@pytest.mark.long
def test_one_hundred_thousand_files_end_after_the_limit() -> None:
    read_bytes = 0

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read_bytes
            part = super().read(size)
            read_bytes += len(part)
            return part

    packed = gzip.compress(tar(*(entry(f"{number}.py") for number in range(100_000))), 1)

    message = refusal(lambda: bundle_files.read_archive(Counted(packed), LIMITS), TooLargeError)

    assert "bundles.max_files allows 5,000" in message
    assert read_bytes < len(packed) / 4


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (entry("/etc/passwd", b"x"), "leads out of the bundle"),
        (entry("../x.py", b"x"), "leads out of the bundle"),
        (entry("lib/../../x.py", b"x"), "leads out of the bundle"),
        (entry(".git/../../x.py", b"x"), "leads out of the bundle"),
        (entry("two\nlines.py", b"x"), "a line break"),
        (entry("\udcff.py", b"x"), "is not UTF-8"),
        (entry("yp\u202etxt.a", b"x"), "control character"),
        (entry("x" * 250, b"x"), "is too long"),
        (entry("/".join(["x" * 100] * 11), b"x"), "is too long"),
        (entry("link.py", kind=tarfile.SYMTYPE, link="/etc/passwd"), "is a link"),
        (entry("link.py", kind=tarfile.LNKTYPE, link="etl.py"), "is a link"),
        (entry("pipe", kind=tarfile.FIFOTYPE), "is a FIFO"),
        (entry("null", kind=tarfile.CHRTYPE), "is a device"),
        (entry("disk", kind=tarfile.BLKTYPE), "is a device"),
        (entry("sparse", kind=tarfile.GNUTYPE_SPARSE), "no regular file"),
        (entry("Etl.py", b"x"), "differ only in case"),
        (entry("etl.py", b"x"), "twice"),
        (entry("./etl.py", b"x"), "twice"),
        (entry("etl.py/inner.py", b"x"), "twice"),
        (entry("Lib/other.py", b"x"), "differ only in case"),
        (entry("caf\u0065\u0301.py", b"x"), "differ only in case or accents"),
    ],
)  # fmt: skip
def test_bad_entries_of_an_archive_are_refused(bad: tuple[tarfile.TarInfo, bytes], says: str) -> None:
    good = [entry("etl.py", b"a"), entry("lib/a.py", b"b"), entry("caf\u00e9.py", b"c")]

    assert says in refusal(lambda: read(tar(*good, bad)))


def test_entries_that_do_not_belong_to_a_bundle_are_left_out() -> None:
    hidden = [entry(".venv/bin/python", kind=tarfile.SYMTYPE, link="/usr/bin/python3"), entry("./.git/HEAD", b"ref"),
              entry("a/__pycache__/b.pyc", b"x"), entry("a", kind=tarfile.DIRTYPE)]  # fmt: skip

    assert list(read(tar(*hidden, entry("./a/b.py", b"x")))) == ["a/b.py"]


def bomb(megabytes: int) -> Iterator[bytes]:
    """The parts of a packed archive with one file of this size."""
    made, _ = entry("bomb")
    made.size = megabytes << 20
    packer = zlib.compressobj(9, wbits=31)
    yield packer.compress(made.tobuf())
    for _ in range(megabytes):
        yield packer.compress(b"\0" * (1 << 20))
    yield packer.flush()


def test_a_bomb_is_refused_by_the_size_that_it_states_and_by_that_which_it_has() -> None:
    packed = b"".join(bomb(200))
    assert len(packed) < 1 << 20

    assert "more bytes than bundles.max_file_bytes" in refusal(
        lambda: bundle_files.read_archive(io.BytesIO(packed), LIMITS), TooLargeError
    )
    # Behind the end of the archive, where no entry states a size.
    hidden = gzip.compress(tar(entry("a.py"))) + gzip.compress(b"\0" * (2 << 20)) * 200
    assert "bytes, which no bundle may have" in refusal(
        lambda: bundle_files.read_archive(io.BytesIO(hidden), LIMITS), TooLargeError
    )


def test_sizes_of_entries_count_together() -> None:
    files = [entry(f"{number}", b"x" * 300) for number in range(4)]

    assert "bundles.max_bytes" in refusal(lambda: read(tar(*files), SMALL), TooLargeError)


def header(size: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """The header of an entry with any bytes as its size."""
    made, _ = entry("a.py", kind=kind)
    plain = bytearray(made.tobuf())
    plain[124:136] = size.ljust(12, b"\0")
    plain[148:156] = b" " * 8
    plain[148:156] = b"%06o\0 " % sum(plain)
    return bytes(plain)


@pytest.mark.parametrize(
    "plain",
    [
        header(b"\xff" * 12), header(b"\x80" + b"\xff" * 11), header(b"77777777777"), header(b"nine"),
        header(b"\xff" * 12, tarfile.XHDTYPE), header(b"7777777", tarfile.XHDTYPE) + b"1" * (7 << 18),
        header(b"7777777", tarfile.GNUTYPE_LONGNAME) + b"x" * (7 << 18), header(b"10") + b"x" * 512 + b"y" * 512,
        header(b"1000") + b"short", b"no archive" * 100, b"", header(b"0", tarfile.XGLTYPE) * 3000,
    ],
)  # fmt: skip
def test_damaged_archives_are_refused(plain: bytes) -> None:
    refusal(lambda: read(plain))


def test_an_archive_that_was_cut_off_is_refused() -> None:
    """Also where the packing says that all is well: what remains must not pass for the whole bundle."""
    whole = tar(entry("a.py", b"x" * 2000), entry("b.py", b"x" * 2000))
    packed = gzip.compress(whole)
    for end in (10, len(packed) // 2, len(packed) - 1):
        refusal(lambda end=end: bundle_files.read_archive(io.BytesIO(packed[:end]), LIMITS))  # type: ignore[misc]
    refusal(lambda: read(whole[:700]))
    refusal(lambda: read(whole[:2560] + b"\1" + whole[2561:]))
    for plain in (whole, whole[:4000]):
        refusal(lambda plain=plain: bundle_files.read_archive(io.BytesIO(plain), LIMITS))  # type: ignore[misc]


@pytest.mark.long
def test_a_search_in_a_long_header_takes_no_hours() -> None:
    """tarfile of older Pythons searches digits in a header in quadratic time."""
    extended = header(b"3777", tarfile.XHDTYPE) + b"1" * 2047 + b"\0"

    refusal(lambda: read(extended * 300))
