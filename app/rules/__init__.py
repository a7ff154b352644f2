"""Rules: which events of which buckets go to which targets."""
