"""An own reader for RTSP over TCP, H.264 and H.265: no frame waits for the next one."""
