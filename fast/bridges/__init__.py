"""Other libraries of KV-cache compression: their methods here, and those of kvlab there."""
