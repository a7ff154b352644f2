"""The real servers of the tests: each function starts one of its own, on loopback, and returns it running.

```python
with services.postgres() as server:      # stopped at the end, also when the test fails
    url = server.create_database("events")
    server.kill()                        # SIGKILL, its children too
    server.start()                       # the same port, the same files
```

Where a server cannot be had the test is skipped with the reason; under CI=true it fails. Whatever still runs when the
test process ends, by SIGKILL too, is ended by the reaper, and all folders go with it.
"""

from tests.services.balancer import Balancer, balancer
from tests.services.brokers import RabbitMQ, Redis, rabbitmq, redis
from tests.services.certificates import Certificates, certificates
from tests.services.collector import Collector, collector
from tests.services.garage import Garage
from tests.services.iceberg_rest import IcebergRest, iceberg_rest
from tests.services.jvm import Elasticsearch, FirstKafka, Kafka, ZooKeeper, elasticsearch, kafka
from tests.services.messaging import (
    Mosquitto,
    Nats,
    NatsStreaming,
    Nsqd,
    mosquitto,
    nats,
    nats_streaming,
    nsqd,
)
from tests.services.proxy import Proxy, proxy
from tests.services.senders import Ceph, S3Server, SeaweedFS, Sender, Versity
from tests.services.server_process import (
    LOOPBACK,
    PASSWORD,
    USER,
    Child,
    Server,
    free_port,
    get,
    logs,
    need,
    new_folder,
    until,
)
from tests.services.sql import MariaDB, MySQL, OldMySQL, Postgres, mariadb, mysql, postgres
from tests.services.storage import MinIO, minio
from tests.services.webhook import Answer, Receiver, Request, receiver

__all__ = [
    "LOOPBACK",
    "PASSWORD",
    "USER",
    "Answer",
    "Balancer",
    "Ceph",
    "Certificates",
    "Child",
    "Collector",
    "Elasticsearch",
    "FirstKafka",
    "Garage",
    "IcebergRest",
    "Kafka",
    "MariaDB",
    "MinIO",
    "Mosquitto",
    "MySQL",
    "Nats",
    "NatsStreaming",
    "Nsqd",
    "OldMySQL",
    "Postgres",
    "Proxy",
    "RabbitMQ",
    "Receiver",
    "Redis",
    "Request",
    "S3Server",
    "SeaweedFS",
    "Sender",
    "Server",
    "Versity",
    "ZooKeeper",
    "balancer",
    "certificates",
    "collector",
    "elasticsearch",
    "free_port",
    "get",
    "iceberg_rest",
    "kafka",
    "logs",
    "mariadb",
    "minio",
    "mosquitto",
    "mysql",
    "nats",
    "nats_streaming",
    "need",
    "new_folder",
    "nsqd",
    "postgres",
    "proxy",
    "rabbitmq",
    "receiver",
    "redis",
    "until",
]
