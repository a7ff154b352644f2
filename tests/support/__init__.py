"""What tests share: builders, servers' life cycles, ledgers, fault injection."""
