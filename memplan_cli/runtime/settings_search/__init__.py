"""The search for the runtime settings with which a model needs the least memory."""
