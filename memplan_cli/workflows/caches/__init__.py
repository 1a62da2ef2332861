"""Decoder caches put in place: rewritten to buffers, planned full, proved by a decode loop."""
