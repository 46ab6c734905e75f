"""What an operator can see of a running aggregator: figures, log lines, spans. Ids, sizes and times; never values."""
