"""The table of all servers: the files that prove its presence, its Debian packages, and how the rest is made."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass

from spark_jobs import connectors
from tests.provision import cargo, debian, go, maven, places, ready_made
from tests.support import assemble_elasticsearch


@dataclass(frozen=True)
class Recipe:
    """How one server is had: `files` (glob patterns) that prove its presence, Debian packages, then a build.

    Builds of different builders (`go`, `maven`) run side by side, those of one builder in turn.
    """

    name: str
    files: tuple[str, ...]
    packages: tuple[str, ...] = ()
    build: Callable[[], None] | None = None
    builder: str = ""
    usual: bool = True

    def absent(self) -> list[str]:
        """The patterns that nothing on this machine matches."""
        return [pattern for pattern in self.files if not glob.glob(pattern)]  # noqa: PTH207 (patterns are absolute)


_MYSQL_LIBRARIES = "/usr/lib/*/libaio.so.1", "/usr/lib/*/libnuma.so.1"
_ELASTICSEARCH = maven.assembled(places.ELASTICSEARCH, places.ELASTICSEARCH_VERSION, assemble_elasticsearch.assemble)
_OPENSEARCH = maven.assembled(places.OPENSEARCH, places.OPENSEARCH_VERSION, assemble_elasticsearch.assemble_opensearch)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("redis", ("/usr/bin/redis-server",), ("redis-server",)),
        Recipe("postgres", ("/usr/lib/postgresql/*/bin/initdb",), ("postgresql",)),
        Recipe(
            "mariadb",
            ("/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"),
            ("mariadb-server-core", "mariadb-client-core"),
        ),
        Recipe("rabbitmq", ("/usr/lib/rabbitmq/bin/rabbitmq-server",), ("rabbitmq-server",)),
        Recipe(
            "mysql",
            (*_MYSQL_LIBRARIES, f"{places.MYSQL}/bin/mysqld", f"{places.MYSQL_DATA}/ibdata1"),
            ("libaio1", "libnuma1"),
            maven.mysql(places.MYSQL_ARTIFACT, places.MYSQL, places.MYSQL_DATA),
            "maven",
        ),
        Recipe(
            "old_mysql",
            (*_MYSQL_LIBRARIES, f"{places.OLD_MYSQL}/bin/mysqld", f"{places.OLD_MYSQL_DATA}/ibdata1"),
            ("libaio1", "libnuma1"),
            maven.mysql(places.OLD_MYSQL_ARTIFACT, places.OLD_MYSQL, places.OLD_MYSQL_DATA),
            "maven",
        ),
        Recipe(
            "minio",
            (f"{places.MINIO}/minio",),
            (),
            go.installed(places.MINIO, f"github.com/minio/minio@{places.MINIO_VERSION}"),
            "go",
        ),
        Recipe(
            "mc", (f"{places.MC}/mc",), (), go.installed(places.MC, f"github.com/minio/mc@{places.MC_VERSION}"), "go"
        ),
        # No server: it judges the units of deploy/systemd.
        Recipe("systemd", ("/usr/bin/systemd-analyze", "/usr/bin/systemd-sysusers"), ("systemd",)),
        Recipe("haproxy", ("/usr/sbin/haproxy",), ("haproxy",)),
        # No server: as in the image with Spark, it names the user of Java.
        Recipe("nss_wrapper", ("/usr/lib/*/libnss_wrapper.so",), ("libnss-wrapper",)),
        Recipe("mosquitto", ("/usr/sbin/mosquitto", "/usr/bin/mosquitto_passwd"), ("mosquitto",)),
        Recipe("nats", ("/usr/sbin/nats-server",), ("nats-server",)),
        Recipe("new_nats", (f"{places.NEW_NATS}/nats-server",), (), ready_made.build_new_nats, "pip"),
        Recipe(
            "nats_streaming",
            (f"{places.STAN}/nats-streaming-server", f"{places.STAN}/stan-sub"),
            (),
            go.installed(
                places.STAN,
                f"github.com/nats-io/nats-streaming-server@{places.STAN_VERSION}",
                f"github.com/nats-io/stan.go/examples/stan-pub@{places.STAN_CLIENT_VERSION}",
                f"github.com/nats-io/stan.go/examples/stan-sub@{places.STAN_CLIENT_VERSION}",
            ),
            "go",
        ),
        Recipe("nsqd", (f"{places.NSQ}/nsqd",), (), go.build_nsq, "go"),
        Recipe("otelcol", (f"{places.OTELCOL}/otelcol",), (), go.build_otelcol, "go"),
        # No servers: they judge the chart of deploy/helm.
        Recipe(
            "kubeconform",
            (f"{places.KUBECONFORM}/kubeconform",),
            (),
            go.installed(
                places.KUBECONFORM, f"github.com/yannh/kubeconform/cmd/kubeconform@{places.KUBECONFORM_VERSION}"
            ),
            "go",
        ),
        # It judges the alert rules; without what discovers servers it takes a minute and a half to build.
        Recipe(
            "promtool",
            (f"{places.PROMTOOL}/promtool",),
            (),
            go.installed(
                places.PROMTOOL,
                f"github.com/prometheus/prometheus/cmd/promtool@{places.PROMETHEUS_VERSION}",
                tags="remove_all_sd",
            ),
            "go",
        ),
        Recipe(
            "kubernetes_schemas",
            (f"{places.KUBERNETES_SCHEMAS}/deployment-apps-v1.json",),
            (),
            go.build_kubernetes_schemas,
            "go",
        ),
        Recipe(
            "helm",
            (f"{places.HELM}/helm",),
            (),
            go.installed(places.HELM, f"helm.sh/helm/v3/cmd/helm@{places.HELM_VERSION}"),
            "go",
        ),
        Recipe("kafka", (f"{places.KAFKA}/*.jar",), (), maven.kafka_jars(places.KAFKA, places.KAFKA_VERSION), "maven"),
        Recipe(
            "old_kafka",
            (f"{places.OLD_KAFKA}/*.jar",),
            (),
            maven.kafka_jars(places.OLD_KAFKA, places.OLD_KAFKA_VERSION),
            "maven",
        ),
        Recipe(
            "first_kafka",
            (f"{places.FIRST_KAFKA}/kafka_*.jar",),
            (),
            maven.kafka_jars(places.FIRST_KAFKA, places.FIRST_KAFKA_VERSION, scala="2.11"),
            "maven",
        ),
        Recipe("elasticmq", (f"{places.ELASTICMQ}/launcher/ElasticMq.class",), (), maven.build_elasticmq, "maven"),
        Recipe("iceberg_rest", (f"{places.ICEBERG_REST}/sqlite-jdbc-*.jar",), (), maven.build_iceberg_rest, "maven"),
        Recipe("s3a_jars", (f"{places.S3A_JARS}/hadoop-aws-*.jar",), (), maven.build_s3a_jars, "maven"),
        Recipe("elasticsearch", (f"{places.ELASTICSEARCH}/launcher/EsNode.class",), (), _ELASTICSEARCH, "maven"),
        Recipe("opensearch", (f"{places.OPENSEARCH}/launcher/OsNode.class",), (), _OPENSEARCH, "maven"),
        Recipe("chromium", ("/usr/bin/chromium-headless-shell",), ("chromium-headless-shell",)),
        Recipe("axe", (f"{places.AXE}/axe.min.js",), (), ready_made.build_axe, "npm"),
        Recipe("oidc", (f"{places.OIDC}/node_modules/oidc-provider/lib/index.js",), (), ready_made.build_oidc, "npm"),
        Recipe("keycloak", (f"{places.KEYCLOAK}/lib/quarkus-run.jar",), (), maven.build_keycloak, "maven"),
        Recipe(
            "spark_jars",
            tuple(f"{places.SPARK_JARS}/{connectors.jar_name(each)}" for each in connectors.SHA256),
            (),
            maven.build_spark_jars,
            "maven",
        ),
        # The chart is installed into it where it is there: it takes ten minutes of processor time to build.
        Recipe(
            "kubernetes",
            (f"{places.KUBERNETES}/kube-apiserver", f"{places.KUBERNETES}/etcd"),
            (),
            go.build_kubernetes,
            "go",
            usual=False,
        ),
        # What `make test-all` runs besides: a store that sends nothing, and frontends that send events.
        Recipe("garage", (f"{places.GARAGE}/garage",), (), cargo.build_garage, "cargo", usual=False),
        Recipe(
            "seaweedfs",
            (f"{places.SEAWEEDFS_FOLDER}/weed",),
            (),
            go.built(places.SEAWEEDFS_FOLDER, places.SEAWEEDFS, places.SEAWEEDFS_VERSION, f"{places.SEAWEEDFS}/weed"),
            "go",
            usual=False,
        ),
        Recipe(
            "versity",
            (f"{places.VERSITY_FOLDER}/versitygw",),
            (),
            go.built(places.VERSITY_FOLDER, places.VERSITY, places.VERSITY_VERSION, f"{places.VERSITY}/cmd/versitygw"),
            "go",
            usual=False,
        ),
        Recipe(
            "ceph",
            tuple(f"/usr/bin/{name}" for name in ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw")),
            ("ceph-common", "ceph-mgr", "ceph-mon", "ceph-osd", "radosgw"),
            usual=False,
        ),
        # What `make matrix` runs besides. MySQL and MariaDB exclude each other.
        Recipe(
            "newest",
            tuple(f"{places.NEWEST}/usr/{file}" for file in places.NEWEST_FILES),
            (),
            debian.unpacked(places.NEWEST, places.NEWEST_PACKAGES),
            usual=False,
        ),
        Recipe(
            "newest_mysql",
            (f"{places.NEWEST_MYSQL}/usr/sbin/mysqld", f"{places.NEWEST_MYSQL}/data/ibdata1"),
            (),
            debian.build_newest_mysql,
            usual=False,
        ),
        Recipe(
            "newest_python",
            (f"{places.NEWEST_PYTHON}/usr/bin/python3.13", f"{places.NEWEST_PYTHON}/usr/bin/python3.14"),
            (),
            debian.build_newest_python,
            usual=False,
        ),
        Recipe(
            "newest_elasticsearch",
            (f"{places.NEWEST_JAVA}/usr/bin/java", f"{places.NEW_ELASTICSEARCH}/launcher/EsNode.class"),
            (),
            maven.assembled(
                places.NEW_ELASTICSEARCH,
                places.NEW_ELASTICSEARCH_VERSION,
                assemble_elasticsearch.assemble,
                newer_java=True,
            ),
            "maven",
            usual=False,
        ),
        Recipe(
            "newest_opensearch",
            (f"{places.NEWEST_JAVA}/usr/bin/java", f"{places.NEW_OPENSEARCH}/launcher/OsNode.class"),
            (),
            maven.assembled(
                places.NEW_OPENSEARCH,
                places.NEW_OPENSEARCH_VERSION,
                assemble_elasticsearch.assemble_opensearch,
                newer_java=True,
            ),
            "maven",
            usual=False,
        ),
    )
}


def missing(name: str) -> str | None:
    """Why the server called `name` cannot be started here, or None when it can."""
    absent = RECIPES[name].absent()
    return f"{name}: {', '.join(absent)} not found; run `python -m tests.provision {name}`" if absent else None
