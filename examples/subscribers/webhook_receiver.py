"""Print the events that are posted here, if their signature is right: the target's secret is in `SIGNING_SECRET`.

bucketwire target set webhook:1 endpoint=http://localhost:8080/ allow_private=on signing_secret=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
pip install standardwebhooks
"""  # noqa: E501

from http.server import BaseHTTPRequestHandler, HTTPServer
import json, os
from standardwebhooks.webhooks import Webhook


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Webhook(os.environ["SIGNING_SECRET"]).verify(body, dict(self.headers))  # raises, so answers nothing, if forged
        print(self.headers["webhook-id"], json.loads(body)["EventName"], json.loads(body)["Key"], flush=True)
        self.send_response(204)
        self.end_headers()


HTTPServer(("127.0.0.1", 8080), Receiver).serve_forever()
