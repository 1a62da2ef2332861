"""What a whole process takes, predicted: its heap, its weights and its arena, page by page."""
