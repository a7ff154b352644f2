"""Elasticsearch and OpenSearch."""

from workers.targets.elasticsearch.target import ElasticsearchTarget

__all__ = ["ElasticsearchTarget"]
