"""One tree of errors. Every message names the camera or the key, and what to do.

VidserveError
├── ConfigError            the file is wrong: a list of problems with line and column
├── MissingLibraryError    a system library is absent: names the package that brings it
├── CaptureError           a source cannot be opened or read
│   ├── SourceUnauthorized     the camera refused the login
│   ├── SourceUnreachable      refused, no such host, no such file, connection lost
│   │   └── SourceSilent           it took the connection, but nothing came in time
│   └── SourceUnusable         it answers, but holds nothing that can be shown
├── DetectorError          the detector cannot be loaded or failed on a batch
│   └── ModelNotFoundError     named, but not on disk
├── EvaluationError        a sequence or its truth cannot be read, or a scorer is not installed
└── OutputError            an output (broker, file) cannot be started
"""

from __future__ import annotations


class VidserveError(Exception):
    """Base of all errors that this project raises on purpose."""


class ConfigError(VidserveError):
    """The configuration is wrong; ``str(error)`` is ready to print, a line a problem."""


class MissingLibraryError(VidserveError):
    """A shared library of the system is missing."""


class CaptureError(VidserveError):
    """A source cannot be opened or read. The message holds no credentials."""


class SourceUnauthorized(CaptureError):
    """The camera refused the login. Retried slowly: cameras lock accounts."""


class SourceUnreachable(CaptureError):
    """Nothing answers there: refused, unknown host, no such file, connection lost."""


class SourceSilent(SourceUnreachable):
    """Nothing came in time. Shown as a stall, not as a failure."""


class SourceUnusable(CaptureError):
    """The source answers, but has no video track or no picture that decodes."""


class DetectorError(VidserveError):
    """The detector cannot be loaded, or failed on a batch."""


class ModelNotFoundError(DetectorError):
    """The model is named, but not on disk."""


class EvaluationError(VidserveError):
    """A recorded sequence cannot be evaluated: a bad file, no pictures, no scorer."""


class OutputError(VidserveError):
    """An output cannot be started."""
