"""Settings of the service and of targets: their declarations, forms, parsing, checks and sealed secrets."""
