"""Two models run and compared: bit for bit, replayed in a plan, with donated buffers."""
