"""Values of small integer tensors as expressions, and the shapes that follow from them."""
