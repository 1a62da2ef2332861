"""Program -> facts: liveness, storage sharing, phases and costs."""
