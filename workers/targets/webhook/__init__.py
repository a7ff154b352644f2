"""Webhook."""

from workers.targets.webhook.target import WebhookTarget

__all__ = ["WebhookTarget"]
