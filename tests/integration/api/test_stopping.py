"""An API that is stopped loses no post: it answers on until balancers send elsewhere, and then what it has begun."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil

from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import Api, Start, keys, url_of
from tests.services import Balancer, until
from tests.services.server_process import is_stopped
from tests.support.api_requests import body
from tests.support.chart import LEAST, objects, pods
from tests.support.one_time_sender import OneTimeSender

PATIENCE = 60
POST = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


def test_an_api_that_is_about_to_stop_says_so_and_answers_on(log: Database, start: Start) -> None:
    api = start(url_of(log), processes=2, stop_delay="1h")
    assert api.post(body("before")).headers.get("connection") != "close"
    os.kill(api.pid, signal.SIGTERM)
    until(lambda: api.client.get("/healthz").status_code == 503, PATIENCE, what="the probe to say so")
    assert api.client.get("/healthz").json() == {"status": "stopping"}
    assert api.client.get("/minio/health/live").status_code == 503
    readiness = api.client.get("/readyz").json()
    assert (readiness["ready"], readiness["checks"]["process"]["ok"]) == (False, False)
    for number in range(20):  # over new connections: each process takes some
        answer = httpx.post(f"{api.url}/v1/events", content=body(f"after-{number}"), timeout=PATIENCE, trust_env=False)
        assert (answer.status_code, answer.headers["connection"]) == (202, "close")
    os.kill(api.pid, signal.SIGTERM)
    until(lambda: not api.running, PATIENCE, what="the end, at the second signal")
    assert len(keys(log)) == 21


def test_a_reload_is_no_stop(log: Database, start: Start) -> None:
    api = start(url_of(log), processes=1, stop_delay="1h")
    os.kill(api.pid, signal.SIGHUP)
    until(lambda: "Hang up" in api.tail(), PATIENCE, what="the reload")
    sender = OneTimeSender([api.url])
    with sender.running():
        sender.wait_for_more(100)
    assert sender.lost == []
    assert api.client.get("/healthz").status_code == 200
    api.kill()


def test_connections_that_wait_when_a_process_stops_are_answered(log: Database, start: Start, stack: ExitStack) -> None:
    """The kernel would reset them when the last process closes the socket that they wait at."""
    api = start(url_of(log), processes=1)
    [worker] = psutil.Process(api.pid).children()
    worker.suspend()
    until(lambda: is_stopped(worker.pid), PATIENCE, what="the process stopped")
    waiting = []
    for number in range(20):
        client = stack.enter_context(socket.create_connection((services.LOOPBACK, api.port), timeout=PATIENCE))
        content = body(f"k{number}")
        client.sendall(POST % (len(content), content))
        waiting.append(client)
    os.kill(api.pid, signal.SIGTERM)
    until(lambda: _is_asked_to_stop(worker.pid), PATIENCE, what="the signal to the process")
    worker.resume()
    assert [client.recv(1000)[:12] for client in waiting] == [b"HTTP/1.1 202"] * 20
    until(lambda: not api.running, PATIENCE, what="the end")
    assert len(keys(log)) == 20


def _is_asked_to_stop(pid: int) -> bool:
    pending = re.findall(r"(?:Sig|Shd)Pnd:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(signals, 16) >> (signal.SIGTERM - 1) & 1 for signals in pending)


def test_no_post_is_lost_while_apis_are_replaced_behind_a_balancer_that_follows_their_probes(
    log: Database, start: Start, stack: ExitStack
) -> None:
    apis = [start(url_of(log), processes=2, stop_delay="1s") for _ in range(2)]
    balancer = stack.enter_context(services.balancer(*(api.port for api in apis), probe="/healthz"))
    sender = OneTimeSender([f"http://{services.LOOPBACK}:{port}" for port in (balancer.port, balancer.tcp_port)])
    with sender.running():
        for api in apis:
            until(lambda: all(balancer.is_ready(api.port) for api in apis), PATIENCE, what="both APIs in service")
            sender.wait_for_more()
            api.stop()
            sender.wait_for_more()
            api.start()
    assert sender.lost == []
    assert sorted(keys(log)) == sorted(sender.taken)


class Pods:
    """The API's pods as a cluster would run them: the chart's probe, hook and time, in Kubernetes' order.

    The nodes, here a balancer, get to know late that a pod ends.
    """

    def __init__(self, apis: list[Api], balancer: Balancer) -> None:
        values = LEAST | {"api": {"stopDelaySeconds": 2}}
        [pod] = [spec for name, _, spec in pods(objects(values)) if name == "bw-bucketwire-api"]
        [container] = pod["containers"]
        self._probe = container["readinessProbe"]["httpGet"]["path"]
        self._pre_stop = container["lifecycle"]["preStop"]["exec"]["command"]
        self._seconds = pod["terminationGracePeriodSeconds"]
        self._apis, self._balancer = apis, balancer

    def replace(self, old: Api) -> None:
        """Start another pod, and when it is ready end the old one."""
        new = next(api for api in self._apis if not api.running)
        new.start()
        until(lambda: new.client.get(self._probe).status_code == 200, PATIENCE, what="a ready pod")
        self._balancer.set_ready(new.port, ready=True)
        nodes_know = threading.Timer(1, self._balancer.set_ready, (old.port,), {"ready": False})
        nodes_know.start()
        killed = time.monotonic() + self._seconds
        subprocess.run(self._pre_stop, check=True)
        os.kill(old.pid, signal.SIGTERM)
        until(lambda: not old.running, killed - time.monotonic(), what="the end before it would be killed")
        old.stop()
        nodes_know.join()


def test_no_post_is_lost_in_a_rollout_as_the_chart_has_kubernetes_do_it(
    log: Database, start: Start, stack: ExitStack
) -> None:
    apis = [start(url_of(log), processes=2) for _ in range(3)]
    balancer = stack.enter_context(services.balancer(*(api.port for api in apis)))
    balancer.set_ready(apis[2].port, ready=False)
    apis[2].stop()
    cluster = Pods(apis, balancer)
    sender = OneTimeSender([f"http://{services.LOOPBACK}:{balancer.tcp_port}"])
    with sender.running():
        for old in apis[:2]:
            sender.wait_for_more()
            cluster.replace(old)
            sender.wait_for_more()
    assert sender.lost == []
    assert sorted(keys(log)) == sorted(sender.taken)
