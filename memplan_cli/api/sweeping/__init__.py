"""Many models at many bindings, in this process, in others, or on a cluster."""
