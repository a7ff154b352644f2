"""Amazon SQS, or a server that speaks its JSON protocol."""
