"""Detection: batches of letterboxed pictures in, boxes in source pixels out."""
