"""StreamingLLM (arXiv 2309.17453): protection and `kvlab.fast.methods.full.Recency` say it all."""
