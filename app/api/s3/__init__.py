"""The S3 API: the calls of `mc`, boto3 and minio-py for a bucket's rules and its stream of events.

A request is recognized by its signature, not by its path: a bucket may be called `metrics` or `console`.
"""
