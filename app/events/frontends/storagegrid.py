"""NetApp StorageGRID: records of AWS's form under its own source, as JSON or as a call of SNS's action Publish."""

from app.events.frontends.aws import normalize
from app.events.frontends.frontend import Frontend

SOURCE = "sgws:s3"

STORAGEGRID = Frontend("storagegrid", normalize)
