"""A session starts sooner the second time, and queries of few rows are planned for few."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs import connectors, session
from spark_jobs.folders import Folder
from spark_jobs.session import ClassArchive
from tests import provision, services
from tests.services import spark_classes

NIGHTLY = pytest.mark.nightly("a command keeps an archive of classes, or goes on without")

ROOT = Path(__file__).parents[2]
RUN = """
import signal
import sys
from pathlib import Path
from pyspark import SparkContext
from spark_jobs.session import launch, session

options = {"master": "local[1]", "jars": sys.argv[1], "memory": "512m"}
finish = launch("start", **options, is_short=True, cache=Path(sys.argv[2]))
with session("start", **options) as spark:
    assert spark.range(3).selectExpr("sum(id)").first()[0] == 3
java = SparkContext._jvm.java.lang.management.ManagementFactory
print(*java.getRuntimeMXBean().getInputArguments(), sep="\\n")
finish()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Spark's own fails without a session"
"""
TOP = "source: shared objects file (top)"  # a class of the archive; those of Java's own are of another file


@NIGHTLY
def test_the_first_run_leaves_an_archive_of_classes_and_the_second_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("spark_jars")
    cache, log = tmp_path / "cache", tmp_path / "classes.log"
    cache.mkdir()
    for left in ("spark-classes-0.jsa", "spark-classes-0.failed", "spark-classes-1.4711"):
        (cache / left).touch()
    command = [sys.executable, "-c", RUN, str(provision.SPARK_JARS), str(cache)]

    def run() -> list[str]:
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    first = run()
    (archive,) = cache.glob("spark-classes-*.jsa")
    assert {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"} <= set(first)
    assert archive.stat().st_mode & 0o077 == 0
    assert list(cache.iterdir()) == [archive]

    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '-XX:+UseG1GC -Xlog:class+load:file={log}' pyspark-shell"
    )
    second = run()
    assert f"-XX:SharedArchiveFile={archive}" in second
    assert "-XX:+UseSerialGC" not in second  # with two collectors Java would not start
    classes = [line for line in log.read_text().splitlines() if "org.apache.spark." in line and "Lambda" not in line]
    assert sum(TOP in line for line in classes) > len(classes) // 2


def test_all_checkouts_run_one_spark_so_that_one_archive_of_classes_fits(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    path = jvm.java.lang.System.getProperty("java.class.path").split(os.pathsep)
    assert len(path) > 100
    assert [each for each in path if not Path(each).is_relative_to(spark_classes.home())] == []
    assert spark_classes.home().parent == provision.CACHE


def test_an_archive_that_could_not_be_made_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "spark-classes-1.jsa"
    archive = ClassArchive.at(path)
    assert archive is not None
    assert archive.written is not None
    archive.written.parent.rmdir()  # as if the JVM had left nothing
    path.with_suffix(".failed").touch()
    assert ClassArchive.at(path) is None
    path.touch()
    assert ClassArchive.at(path) == ClassArchive(path)


def test_an_archive_that_could_not_be_kept_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert ClassArchive.at(tmp_path / "cache" / "spark-classes-1.jsa") is None


def test_queries_of_few_rows_have_settings_of_their_own(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = "spark.sql.limit.scaleUpFactor", "spark.sql.adaptive.enabled"
    assert spark.sparkContext.getConf().get(theirs) == "false"
    monkeypatch.setattr(session, "_SMALL_PLANS", {ours: "9", theirs: "true"})
    new, partitions = spark.newSession(), "spark.sql.shuffle.partitions"
    new.conf.set(partitions, "64")
    before = new.conf.get(ours)
    with session.small_plans(new, is_small=True):
        assert new.conf.get(ours) == "9"
        assert new.conf.get(theirs) == "false"  # whoever set it knows better
        assert new.conf.get(partitions) == "2"  # one for each core
    assert (new.conf.get(ours), new.conf.get(partitions)) == (before, "64")
    with session.small_plans(new, is_small=False):
        assert (new.conf.get(ours), new.conf.get(partitions)) == (before, "64")


def test_what_is_few(tmp_path: Path) -> None:
    assert not session.is_few(0)  # unknown
    assert session.is_few(session.FEW)
    assert not session.is_few(session.FEW + 1)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "0").write_bytes(b"x")
    assert session.are_small_files(Folder.of(tmp_path))
    with (tmp_path / "part" / "1").open("wb") as file:
        file.truncate(9 << 20)
    assert not session.are_small_files(Folder.of(tmp_path))


@pytest.mark.parametrize("debug", ["", pytest.param("1", marks=NIGHTLY)])
def test_what_java_writes_is_shown_only_where_it_is_asked_for_or_does_not_start(debug: str) -> None:
    services.need("spark_jars")
    program = (
        "from spark_jobs.session import session\n"
        "with session('noise', master='local[1]', jars=__import__('sys').argv[1], memory='512m') as spark:\n"
        "    spark.range(1).count()\n"
    )
    environment = {
        **os.environ,
        "BUCKETWIRE_DEBUG": debug,
        "SPARK_LAUNCHER_OPTS": "",
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(provision.SPARK_JARS)]
        return subprocess.run(command, cwd=ROOT, env=environment | more, capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, bool(done.stderr)) == (0, bool(debug)), done.stderr
    failed = run(JAVA_TOOL_OPTIONS="-XX:NoSuchOption")
    assert failed.returncode == 1
    assert "Unrecognized VM option 'NoSuchOption'" in failed.stderr


def test_a_pod_without_a_writable_home_reads_by_the_drivers_of_the_jars_folder(tmp_path: Path) -> None:
    """As in the image, which has them: without the folder, Ivy would make another one in the home."""
    services.need("spark_jars")
    program = (
        "import sys\n"
        "from spark_jobs.session import session\n"
        "with session('home', master='local[1]', jars=sys.argv[1], memory='512m') as spark:\n"
        "    for url, driver in (('postgresql', 'org.postgresql.Driver'), ('mysql', 'com.mysql.cj.jdbc.Driver')):\n"
        "        try:\n"
        "            options = {'driver': driver, 'dbtable': 't', 'url': f'jdbc:{url}://127.0.0.1:1/x'}\n"
        "            spark.read.format('jdbc').options(**options).load()\n"
        "        except Exception as error:\n"
        "            print('ClassNotFound' in str(error), 'onnect' in str(error) or 'ommunications' in str(error))\n"
    )
    nowhere = {"HOME": "/proc/none", "JAVA_TOOL_OPTIONS": "-Duser.home=/proc/none", "SPARK_LOCAL_DIRS": str(tmp_path)}
    command = [sys.executable, "-c", program, str(provision.SPARK_JARS)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["False True"] * 2), done.stderr


@pytest.mark.parametrize("installed", [True, pytest.param(False, marks=NIGHTLY)])
def test_a_user_without_a_name_runs_spark(installed: bool) -> None:
    """As OpenShift has it: Hadoop's login would find no name, and fail before any setting is read."""
    for needed in ("spark_jars", "nss_wrapper"):
        services.need(needed)
    become = ["unshare", "--user", "--map-user=1234567890", "--map-group=0"]
    if subprocess.run([*become, "true"], check=False).returncode:
        pytest.skip("namespaces of users cannot be made here")
    program = (
        "import sys\n"
        "from spark_jobs import java_environment\n"
        "from spark_jobs.session import session\n"
        f"if not {installed}: java_environment._WRAPPER = 'libnothing.so'\n"
        "with session('user', master='local[1]', jars=sys.argv[1], memory='512m') as spark:\n"
        "    print(spark.sparkContext.sparkUser(), spark.range(9).rdd.map(lambda row: row.id).sum())\n"
    )
    command = [*become, sys.executable, "-c", program, str(provision.SPARK_JARS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if installed:
        assert done.stdout == "bucketwire 36\n", done.stderr
    else:
        assert "user 1234567890 has no name, which Java needs: install libnss-wrapper" in done.stderr
    assert "libnss-wrapper" in (ROOT / "Dockerfile").read_text()


def test_the_image_has_the_libraries_by_their_hashes(tmp_path: Path) -> None:
    services.need("spark_jars")
    connectors.check(provision.SPARK_JARS)
    for coordinates in connectors.SHA256:
        (tmp_path / connectors.jar_name(coordinates)).write_bytes(b"another file")
    with pytest.raises(ValueError, match=r"org\.postgresql:postgresql.* has another SHA-256"):
        connectors.check(tmp_path)
    image = (ROOT / "Dockerfile").read_text()
    stage = image[image.index("FROM base AS spark") :]
    assert "COPY --from=jars /jars /opt/bucketwire/jars" in stage
    assert "BUCKETWIRE_SPARK_JARS=/opt/bucketwire/jars" in stage
    assert """connectors.check("/jars")""" in image
