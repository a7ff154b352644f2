"""Flower beside a running service."""

from __future__ import annotations

from typing import Any

import httpx

from tests import services
from tests.support.service_processes import Role


class Flower(Role):
    """Flower; ready when its API knows workers."""

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.port}"

    @property
    def host(self) -> str:
        return services.LOOPBACK

    def argv(self) -> list[Any]:
        return [*super().argv(), "flower", "--listen", f"{self.host}:{self.port}"]

    def ping(self) -> None:
        assert self.ask("/api/workers")

    def ask(self, path: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}{path}", auth=self.login, timeout=5, trust_env=False).raise_for_status()
        shown: dict[str, Any] = answer.json()
        return shown

    @property
    def login(self) -> tuple[str, str] | None:
        return None

    def post(self, path: str) -> int:
        return httpx.post(f"{self.url}{path}", auth=self.login, timeout=5, trust_env=False).status_code
