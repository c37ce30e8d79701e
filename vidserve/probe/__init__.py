"""What a source is, found out in a few seconds: ``vidserve probe``."""
