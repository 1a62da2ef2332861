"""What happens inside the worker process: one module a kind of job, ``run(job)`` each."""
