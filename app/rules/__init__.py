"""Rules: which events of which buckets are sent to which targets."""
