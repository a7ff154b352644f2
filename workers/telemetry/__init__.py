"""What workers report: metrics, delivery log lines, redaction of secrets."""
