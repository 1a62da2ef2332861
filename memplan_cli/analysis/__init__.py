"""Program -> facts: who lives when, who shares storage, which part is which phase."""
