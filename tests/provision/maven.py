"""What Maven Central has: jars, and MySQL within one."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_jobs import connectors
from tests.provision.debian import build_newest_java
from tests.provision.places import (
    AWS_SDK_VERSION,
    CACHE,
    ELASTICMQ,
    ELASTICMQ_VERSION,
    HADOOP_VERSION,
    ICEBERG_REST,
    ICEBERG_REST_VERSION,
    JETTY_VERSION,
    KEYCLOAK,
    KEYCLOAK_VERSION,
    NEWEST_JAVA,
    S3A_JARS,
    SPARK_JARS,
)
from tests.provision.steps import CannotProvideError, as_root, building, run, tool
from tests.support import debian_tree

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def mysql(artifact: str, place: Path, data: Path) -> Callable[[], None]:
    """Oracle's MySQL, unmodified, into `place`, and one initialised datadir."""
    return lambda: build_mysql(artifact, place, data)


def build_mysql(artifact: str, place: Path, data: Path) -> None:
    """The server, from the only place that has it for these machines."""
    if not (place / "bin/mysqld").exists():
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            argv = [tool("mvn"), "-q", "-B", f"{COPY}:copy", f"-Dartifact={artifact}"]
            run([*argv, f"-DoutputDirectory={scratch}"], cwd=Path(scratch))
            with zipfile.ZipFile(next(Path(scratch).glob("*.jar"))) as jar:
                jar.extract("mysql-Linux-amd64.tar.gz", scratch)
            with tarfile.open(Path(scratch) / "mysql-Linux-amd64.tar.gz") as archive:
                archive.extractall(made, filter="data")
    with building(data) as made:
        # Initialising takes 4 s and copying its result 0.1 s, so each server starts from a copy.
        options = ["--no-defaults", "--initialize-insecure", f"--lc-messages-dir={place}/share"]
        run([place / "bin/mysqld", *options, f"--datadir={made}", *as_root(), "--innodb-flush-method=nosync"])
        (made / "auto.cnf").unlink(missing_ok=True)


def kafka_jars(place: Path, version: str, scala: str = "2.13") -> Callable[[], None]:
    """Apache Kafka's published jars into `place`; pinned, because a later release lacks one of its own."""
    return lambda: build_kafka(place, version, scala)


def build_kafka(place: Path, version: str, scala: str) -> None:
    """The broker with all it needs at run time, and a simple log."""
    copy_jars(place, f"org.apache.kafka:kafka_{scala}:{version}", "org.slf4j:slf4j-simple:1.7.36")


def build_iceberg_rest() -> None:
    """Iceberg's own server of a REST catalog, from the jars of its tests; Spark has the Hadoop that it needs."""
    jetty = [
        f"org.eclipse.jetty.{artifact}:{JETTY_VERSION}"
        for artifact in (
            "ee10:jetty-ee10-servlet",
            "compression:jetty-compression-server",
            "compression:jetty-compression-gzip",
        )
    ]
    copy_jars(
        ICEBERG_REST,
        f"org.apache.iceberg:iceberg-open-api:{ICEBERG_REST_VERSION}:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{ICEBERG_REST_VERSION}",
        f"org.apache.iceberg:iceberg-core:{ICEBERG_REST_VERSION}:tests",
        *jetty,
        "org.slf4j:slf4j-simple:2.0.17",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    )


def build_elasticmq() -> None:
    """The server of SQS's protocol, and a class that starts it, as its archive with one is not published."""
    copy_jars(ELASTICMQ, f"org.elasticmq:elasticmq-rest-sqs_2.13:{ELASTICMQ_VERSION}")
    source = Path(__file__).parents[1] / "services" / "sources" / "ElasticMq.java"
    with building(ELASTICMQ / "launcher") as made:
        run([tool("javac"), "-nowarn", "-cp", f"{ELASTICMQ}/*", "-d", made, source])


def build_keycloak() -> None:
    """Keycloak's own distribution, with what it makes of its settings before its first start, which takes a while."""
    artifact = f"org.keycloak:keycloak-quarkus-dist:{KEYCLOAK_VERSION}:zip"
    with building(KEYCLOAK) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        copy = [tool("mvn"), "-q", "-B", f"{COPY}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"]
        run(copy, cwd=Path(scratch))
        with zipfile.ZipFile(next(Path(scratch).glob("*.zip"))) as archive:
            archive.extractall(scratch)
        for part in (Path(scratch) / f"keycloak-{KEYCLOAK_VERSION}").iterdir():
            part.rename(made / part.name)
        main = "io.quarkus.bootstrap.runner.QuarkusEntryPoint"
        quick = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        places = [f"-Dkc.home.dir={made}", f"-Djboss.server.config.dir={made}/conf"]
        run([tool("java"), *quick, *places, "-cp", made / "lib/quarkus-run.jar", main, "build", "--db=dev-file"])


def build_s3a_jars() -> None:
    """Hadoop's file system `s3a:`, with those parts of AWS's SDK that it needs: the whole SDK is 600 MB."""
    parts = ("s3-transfer-manager", "sts", "apache-client")
    # Spark has netty and slf4j, in other versions.
    excluded = ("software.amazon.awssdk:bundle", "software.amazon.awssdk:netty-nio-client", "io.netty:*", "org.slf4j:*")
    sdk = (f"software.amazon.awssdk:{part}:{AWS_SDK_VERSION}" for part in parts)
    copy_jars(S3A_JARS, f"org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}", *sdk, excluded=excluded)


def copy_jars(place: Path, *artifacts: str, excluded: Sequence[str] = ()) -> None:
    """Put artifacts of Maven Central (group:artifact:version[:classifier]) and all that they need into `place`.

    `excluded` (group:artifact, `*` for any) is not put there.
    """

    def elements(coordinates: str) -> str:
        names = ("groupId", "artifactId", "version", "classifier")
        values = zip(names, coordinates.split(":"), strict=False)
        return "".join(f"<{name}>{value}</{name}>" for name, value in values)

    without = "".join(f"<exclusion>{elements(one)}</exclusion>" for one in excluded)
    dependencies = [f"{elements(artifact)}<exclusions>{without}</exclusions>" for artifact in artifacts]
    with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>jars</artifactId>"
            "<version>1</version><packaging>pom</packaging><dependencies>"
            + "".join(f"<dependency>{dependency}</dependency>" for dependency in dependencies)
            + "</dependencies></project>"
        )
        copy = [f"{COPY}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={made}"]
        tool("java")
        run([tool("mvn"), "-q", "-B", "-f", pom, *copy])


Assemble = Callable[[Path, str, Path, Callable[..., None], Sequence[str | Path], int], None]


def assembled(place: Path, version: str, assemble: Assemble, *, newer_java: bool = False) -> Callable[[], None]:
    """A search engine put together from the published jars."""

    def build() -> None:
        tool("mvn")
        if newer_java and not (NEWEST_JAVA / "usr/bin/javac").exists():
            build_newest_java()
        javac, java = (debian_tree.within(NEWEST_JAVA, ["javac"]), 21) if newer_java else ([tool("javac")], 17)
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            assemble(made, version, Path(scratch), run, javac, java)

    return build


def build_spark_jars() -> None:
    """The libraries of the Spark jobs, each one file."""
    tool("java")
    with building(SPARK_JARS) as made:
        for each in connectors.SHA256:
            run([tool("mvn"), "-q", "-B", f"{COPY}:copy", f"-Dartifact={each}", f"-DoutputDirectory={made}"], cwd=made)
        try:
            connectors.check(made)
        except ValueError as error:
            raise CannotProvideError(str(error)) from None
