"""The S3 face: what `mc`, boto3 and minio-py call for a bucket's rules and its stream of events.

A request belongs to it by its signature, not by its path: a bucket may be called `metrics` or `console`.
"""
