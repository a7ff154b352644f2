"""A baseline of bench.ingest: a Flask view that reads the body and answers 202, served as the API is."""

from flask import Flask, Response, request

ANSWER = b'{"recorded":1,"repeated":0,"ignored":0,"matched":{"arn:minio:sqs::x:webhook":1},"discarded":{}}'

app = Flask("bare")


@app.post("/v1/events")
def events() -> Response:
    """Answer as the API does."""
    request.get_data()
    return Response(ANSWER, 202, mimetype="application/json")


@app.get("/healthz")
def healthz() -> Response:
    """Say that the server is up."""
    return Response(b"{}", mimetype="application/json")
