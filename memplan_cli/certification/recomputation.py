"""x."""
from typing import Any
def check_recomputation(*a: Any) -> None:
    pass
