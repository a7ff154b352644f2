"""`mc admin` and minio-py's MinioAdmin with one server, ours or a real MinIO."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from minio.credentials import StaticProvider
from minio.minioadmin import MinioAdmin

from tests import provision, services


class Admin:
    """The clients of a server, which is the alias `bw` of `mc`."""

    def __init__(self, place: str, access_key: str, secret_key: str, folder: Path) -> None:
        services.need("mc")
        self.place = place
        self._config = folder / "mc"
        self.env = {
            "MC_HOST_bw": f"http://{access_key}:{secret_key}@{place}",
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "TERM": "xterm",
        }
        self.py = MinioAdmin(endpoint=place, credentials=StaticProvider(access_key, secret_key), secure=False)

    def argv(self, line: str) -> list[str]:
        """The arguments of a line as a user types it."""
        words = shlex.split(line)
        assert words[0] == "mc"
        return [str(provision.MC / "mc"), "--config-dir", str(self._config), *words[1:]]

    def ok(self, line: str, given: str = "") -> str:
        """The output of a line that succeeds; `given` is its standard input."""
        code, said = self.run(line, given)
        assert code == 0, f"{line}: {said}"
        return said

    def refused(self, line: str, given: str = "") -> str:
        """The error of a line that fails."""
        code, said = self.run(line, given)
        assert code == 1, f"{line}: {said}"
        assert said.startswith("mc: <ERROR> "), said
        return said

    def keys(self, target: str) -> dict[str, str]:
        """The keys of a target, `section:name`, as mc parses them."""
        [shown] = json.loads(self.ok(f"mc --json admin config get bw {target}"))["config"]
        return {pair["key"]: pair["value"] for pair in shown["kv"]}

    def run(self, line: str, given: str = "") -> tuple[int, str]:
        """The exit code and the output of a line; `given` is its standard input."""
        done = subprocess.run(
            self.argv(line), env=self.env, input=given, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr
