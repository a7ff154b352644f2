"""The tests' clients read one authority, not all that certifi has; who needs another names it."""

from __future__ import annotations

import httpx

from tests import services


def test_a_client_reads_one_authority_and_those_that_it_is_told() -> None:
    context = httpx.create_ssl_context(trust_env=False)
    assert len(context.get_ca_certs()) == 1
    context.load_verify_locations(services.certificates().ca)
    assert len(context.get_ca_certs()) == 2
