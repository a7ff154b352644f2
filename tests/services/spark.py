"""A standalone Spark cluster as the PySpark wheel brings it: a master, and workers that start executors."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.services import java, spark_classes
from tests.services.server_process import LOOPBACK, Server, free_port, need

_MEMORY = "600m"  # of a worker, for one executor of Spark's least


@dataclass(eq=False)
class _Daemon(Server):
    """What master and worker have in common; `ui_port` answers in JSON too."""

    def check(self) -> None:
        need("spark_jars")

    def prepare(self) -> None:
        self.ui_port = free_port()

    def env(self) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(spark_classes.home()),
            "SPARK_LOCAL_IP": LOOPBACK,  # else the web page listens on every interface
            "SPARK_DAEMON_MEMORY": "192m",
            # The port of REST is always the same.
            "SPARK_DAEMON_JAVA_OPTS": f"{spark_classes.options()} -Dspark.master.rest.enabled=false",
            "SPARK_LAUNCHER_OPTS": " ".join(java.QUICK),
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }

    def command(self, name: str, *arguments: str) -> Sequence[str | Path]:
        options = ["--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self.ui_port)]
        return [spark_classes.home() / "bin/spark-class", f"org.apache.spark.deploy.{name}", *options, *arguments]

    def state(self) -> dict[str, Any]:
        """What its page tells."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.ui_port}/json/", timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
        return told


@dataclass(eq=False)
class SparkMaster(_Daemon):
    """The master; `url` is what `BUCKETWIRE_SPARK_MASTER` takes."""

    name: ClassVar[str] = "spark-master"
    patience: ClassVar[float] = 90

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def argv(self) -> Sequence[str | Path]:
        return self.command("master.Master")

    def ping(self) -> None:
        assert self.state()["status"] == "ALIVE"

    def alive(self) -> list[dict[str, Any]]:
        """The workers that have registered."""
        return [worker for worker in self.state()["workers"] if worker["state"] == "ALIVE"]


@dataclass(eq=False)
class SparkWorker(_Daemon):
    """A worker of one core, ready when the master knows it."""

    name: ClassVar[str] = "spark-worker"
    patience: ClassVar[float] = 90
    master: SparkMaster = field(kw_only=True)

    def argv(self) -> Sequence[str | Path]:
        return self.command("worker.Worker", "--cores", "1", "--memory", _MEMORY, self.master.url)

    def ping(self) -> None:
        assert self.port in {worker["port"] for worker in self.master.alive()}
