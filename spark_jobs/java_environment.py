"""Prepare what the driver's JVM starts with: options with which it starts sooner, and a name for its user.

What the operator has set wins: an option is left out where theirs contradict it. Imports no Spark.

Hadoop's login fails for a user that `/etc/passwd` does not have, such as in a container on OpenShift, and with it
Spark's driver, before it reads any setting. nss_wrapper (Debian's libnss-wrapper, which the image with Spark has) finds
users in another file.
"""

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"  # before the operator's `spark.driver.extraJavaOptions`
DEFAULTS = (DEFAULT_OPTIONS, "spark.executor.defaultJavaOptions")
UTC = "-Duser.timezone=UTC"
# Entries and rows up to which Java's quick compiler is at least as fast as its optimizing one (measured).
MAX_QUICK_KEYS = 2_000_000
_BYTES_PER_ENTRY = 64  # of a listing in Parquet; in the output of `mc ls` an entry has more
_VARIABLES = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_CLASS_FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
# Each option, and what contradicts it.
_COLLECTOR = re.compile(r"-XX:[+-]Use\w+GC\b")
_QUICK = (
    ("-XX:TieredStopAtLevel=1", re.compile(r"-XX:(TieredStopAtLevel|[+-]TieredCompilation)|-Xint|-Xcomp")),
    ("-XX:+UseSerialGC", _COLLECTOR),
)
_COMPILER = re.compile(
    r"-XX:(Tier4\w+Threshold|CompileThresholdScaling|TieredStopAtLevel|[+-]TieredCompilation)|-Xint|-Xcomp"
)
_LONG = (
    # Java's own choice marks the heap in the background again and again, because Spark's sorts keep it half full, and
    # finds no room for large arrays in a small one.
    ("-XX:+UseParallelGC", _COLLECTOR),
    # Four times Java's own: its optimizing compiler takes processor time from the tasks for code that soon is not used.
    ("-XX:Tier4InvocationThreshold=20000", _COMPILER),
    ("-XX:Tier4MinInvocationThreshold=2400", _COMPILER),
    ("-XX:Tier4CompileThreshold=60000", _COMPILER),
    ("-XX:Tier4BackEdgeThreshold=160000", _COMPILER),
)
_ARCHIVE = re.compile(r"-XX:(SharedArchiveFile|ArchiveClassesAtExit|[+-]UseSharedSpaces)|-Xshare")
# Java's warnings about an archive go to standard output, where a job's result belongs.
_SILENT = "-Xlog:cds*=off"


def quick_options(theirs: str) -> list[str]:
    """Return the options for a short run, beside those of the operator."""
    return _without_contradictions(_QUICK, theirs)


def long_options(theirs: str) -> list[str]:
    """Return the options for a run of many rows, beside those of the operator."""
    return _without_contradictions(_LONG, theirs)


def _without_contradictions(options: Sequence[tuple[str, re.Pattern[str]]], theirs: str) -> list[str]:
    return [option for option, contradiction in options if not contradiction.search(theirs)]


def archive_options(theirs: str, archive: Path, *, leave: bool) -> list[str]:
    """Return the options that use an archive of classes, or `leave` it when Java ends; none if theirs are of one."""
    if _ARCHIVE.search(theirs):
        return []
    return [f"-XX:{'ArchiveClassesAtExit' if leave else 'SharedArchiveFile'}={archive}", _SILENT]


def operators_options(environment: Mapping[str, str], spark_home: Path) -> str:
    """Return every text in which the operator may have set options of the JVM."""
    folder = Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf")
    files = [file for name in ("spark-defaults.conf", "java-opts") if (file := folder / name).is_file()]
    texts = [environment.get(name, "") for name in _VARIABLES]
    return "\n".join([*texts, *(file.read_text(errors="replace") for file in files)])


def archive_path(folder: Path, environment: Mapping[str, str], spark_home: Path, java: str | None) -> Path | None:
    """Return where the archive of this Java and this Spark is or will be in a folder; None if there can be none.

    Java makes no archive if there are folders with files on its class path.
    """
    jars = spark_home / "jars"
    folders = [name for name in _CLASS_FOLDERS if environment.get(name)]
    if java is None or folders or (spark_home / "conf").is_dir() or not jars.is_dir():
        return None
    if re.search(r"[\s\"'\\]", str(folder)):  # Spark divides the options at spaces
        return None
    places = [Path(java).resolve(), jars]
    identity = [(str(place), place.stat().st_mtime_ns) for place in places]
    return folder / f"spark-classes-{blake2b(repr(identity).encode(), digest_size=8).hexdigest()}.jsa"


def estimated_size(known: int, listing: str) -> int:
    """Return about how many entries and rows a run will read; 0 if that is not known.

    `known` is the number at an earlier run, `listing` a file or folder with the listing, empty for none.
    """
    if not listing:
        return known
    path = Path(listing)
    files = path.rglob("*") if path.is_dir() else [path]
    entries = sum(file.stat().st_size for file in files if file.is_file()) // _BYTES_PER_ENTRY
    return max(known, 2 * entries)  # the target probably has as many rows


_USER_NAME = "bucketwire"
_WRAPPER = "libnss_wrapper.so"
_folders: list[TemporaryDirectory[str]] = []  # removed when the process ends


def set_user_name() -> None:
    """Have processes that this one starts from now on find a name for its user, unless it has one."""
    loaded = os.environ.get("LD_PRELOAD", "")
    if _has_user_name() or _WRAPPER in loaded:
        return
    folder = TemporaryDirectory(prefix="bucketwire-user-")
    _folders.append(folder)
    passwd = Path(folder.name) / "passwd"
    passwd.write_text(f"{_USER_NAME}:x:{os.getuid()}:{os.getgid()}::{os.environ.get('HOME', '/')}:/bin/false\n")
    os.environ["LD_PRELOAD"] = f"{loaded}:{_WRAPPER}" if loaded else _WRAPPER
    os.environ["NSS_WRAPPER_PASSWD"] = str(passwd)
    os.environ["NSS_WRAPPER_GROUP"] = "/etc/group"  # it does nothing without one


def user_name_hint() -> str:
    """Return why Java may not have started: its user has no name. Empty if it has one."""
    if _has_user_name():
        return ""
    return f"user {os.getuid()} has no name, which Java needs: install libnss-wrapper, or add the user to /etc/passwd"


def _has_user_name() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
