"""RustFS: MinIO's form in every respect; it encodes more or fewer characters of a key, which decodes to the same."""

from app.events.frontends.frontend import Frontend, as_sent

SOURCE = "rustfs:s3"

RUSTFS = Frontend("rustfs", as_sent)
