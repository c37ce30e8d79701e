"""vidserve: cameras in, truth about what they see out, over MQTT, in time."""

__version__ = "0.1.0"
