"""The names of the JSON schemas: of files, then of what commands print as JSON."""

from __future__ import annotations

SCHEMA_NAMES = (
    "plan",
    "report",
    "config",
    "baseline",
    "certificate",
    "diff",
    "doctor",
    "fit",
    "gate",
    "pack",
    "settings",
    "simulate",
    "soak",
    "sweep",
    "train-step",
    "validate",
    "verified",
    "why-peak",
    "why-process",
    "why-tensor",
)
