"""Make a thumbnail of each JPEG that arrives in a bucket, in the bucket of the same name with `-thumbnail`.

It is the endpoint of a webhook target. The S3 server is that of S3_ENDPOINT, with the keys of AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY. Its answer decides what happens to the event: after 204 it is delivered, after 400 it is a dead
letter, and after any failure it is sent again. So a thumbnail may be made twice, which changes nothing.
"""

import io
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_plus

import boto3
from PIL import Image, UnidentifiedImageError

SIZE = 128, 128
s3 = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"], region_name="us-east-1")


def make_thumbnail(bucket: str, key: str) -> None:
    """Write the thumbnail of an object; nothing if the object has been removed meanwhile."""
    try:
        content = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.NoSuchKey:
        return
    thumbnail = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        image.thumbnail(SIZE)
        image.convert("RGB").save(thumbnail, "JPEG")
    s3.put_object(Bucket=f"{bucket}-thumbnail", Key=key, Body=thumbnail.getvalue(), ContentType="image/jpeg")


class Receiver(BaseHTTPRequestHandler):
    """Answers the webhook's requests."""

    def do_POST(self) -> None:
        """Make the thumbnails that the events ask for, then answer."""
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = 204
        for record in event["Records"]:
            if record["eventName"].startswith("s3:ObjectCreated:"):
                try:
                    make_thumbnail(record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"]))
                except UnidentifiedImageError:
                    status = 400  # no image, at no time
        self.send_response(status)
        self.end_headers()


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "3000"))
    print(f"thumbnails of {os.environ['S3_ENDPOINT']} by http://127.0.0.1:{port}/", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
