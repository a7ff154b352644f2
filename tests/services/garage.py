"""Garage, a store that sends no notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests import provision
from tests.services.senders import ACCESS_KEY, SECRET_KEY, S3Server
from tests.services.server_process import LOOPBACK, free_port


@dataclass(eq=False)
class Garage(S3Server):
    """One node, whose one key may make buckets."""

    name: ClassVar[str] = "garage"

    def prepare(self) -> None:
        rpc = f"{LOOPBACK}:{free_port()}"
        (self.folder / "garage.toml").write_text(
            f"""
            metadata_dir = "{self.folder}/metadata"
            data_dir = "{self.folder}/data"
            db_engine = "lmdb"
            replication_factor = 1
            rpc_bind_addr = "{rpc}"
            rpc_public_addr = "{rpc}"
            rpc_secret = "{"0" * 64}"
            [s3_api]
            api_bind_addr = "{LOOPBACK}:{self.port}"
            s3_region = "us-east-1"
            """
        )

    def argv(self) -> Sequence[str | Path]:
        options = ["-c", self.folder / "garage.toml", "server", "--single-node", "--default-access-key"]
        return [provision.GARAGE / "garage", *options]

    def env(self) -> Mapping[str, str]:
        return {"GARAGE_DEFAULT_ACCESS_KEY": ACCESS_KEY, "GARAGE_DEFAULT_SECRET_KEY": SECRET_KEY}
