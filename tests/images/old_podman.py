"""podman-compose over Debian 12's podman 4.3, which is older than it expects, and without systemd.

Run as `python -m tests.images.old_podman …` with podman-compose on the path; its arguments are those of podman-compose.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import podman_compose

PATIENCE = 300  # seconds


class OldPodman(podman_compose.Podman):
    """Podman as podman-compose would like it."""

    async def output(self, podman_args: Sequence[str], cmd: str = "", cmd_args: Sequence[str] = ()) -> bytes:
        if list(podman_args) == ["--version"]:
            return b"podman version 4.6.0"  # an older one's containers would not wait until others are healthy
        if cmd == "wait" and cmd_args[0] == "--condition=healthy":
            # Podman 4.3 cannot wait for it, and systemd would have to run the checks.
            for name in cmd_args[1:]:
                await self._healthy(name)
            return b""
        return await super().output(podman_args, cmd, cmd_args)

    async def run(
        self, podman_args: Sequence[str], cmd: str = "", cmd_args: Sequence[str] = (), **options: Any
    ) -> int | None:
        # Podman would start what a container requires with it, so also `migrate`, which has ended.
        arguments = [argument for argument in cmd_args if not str(argument).startswith("--requires=")]
        return await super().run(podman_args, cmd, arguments, **options)

    async def _healthy(self, name: str) -> None:
        for _ in range(PATIENCE):
            try:
                await super().output([], "healthcheck", ["run", name])
            except subprocess.CalledProcessError:
                await asyncio.sleep(1)
            else:
                return
        sys.exit(f"{name} has not become healthy")


_parse = podman_compose.PodmanCompose._parse_compose_file


def parse(compose: podman_compose.PodmanCompose) -> None:
    """Read the compose file; forget the dependencies of which the service is in a profile that is not chosen.

    With them podman-compose 1.6 ends with a KeyError, also where they have `required: false`.
    """
    _parse(compose)
    for service in compose.services.values():
        service["_deps"].difference_update([each for each in service["_deps"] if each.name not in compose.services])


if __name__ == "__main__":
    podman_compose.Podman = OldPodman
    podman_compose.PodmanCompose._parse_compose_file = parse
    podman_compose.main()
