"""Long activations computed in chunks.

`axes` knows along which axes each operator can be split, and `kernels` which chunks keep the
bits. `region` groups ops that are chunked together, `ranges` finds what each chunk computes,
`rewrite` writes the chunks, and `search` chooses regions and numbers of chunks for a budget.
`nested` cuts chunks along a second axis, and `columns` copies ops that two products need along
different axes.
"""
