"""What operators do to order and to copies, written down apart from the planner's tables."""

from __future__ import annotations

DRAWING = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)
"""They draw from one generator; so does a Dropout that is told whether it trains."""

DROPOUT_TRAINS = 3
"""A Dropout with so many inputs is told."""

STATISTICS = ((3, 1), (4, 2))
"""Where a BatchNormalization reads its running mean and variance, and gives the new ones."""

OPTIONAL_RESULTS = frozenset({"Dropout", "LayerNormalization", "MaxPool"})
"""They may be asked for their first result alone."""
