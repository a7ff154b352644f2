"""Elasticsearch and OpenSearch."""
