"""The exceptions that end a run with one line: the request is wrong, or no verdict can be come to."""


class RequestError(ValueError):
    """A request that cannot be carried out: one line that says what is wrong and what to do.

    The command prints it to stderr and exits with status 2; ``compare.run`` raises it.
    """


class NoVerdictError(RuntimeError):
    """A run that could not come to a verdict, through no fault of the request; exit status 3."""


class StorageError(NoVerdictError):
    """A file of a run could not be written: the disk is full, say. What was written before is kept."""


EXIT_REQUEST = 2
"""The command's exit status for a request that cannot be carried out."""
EXIT_NO_VERDICT = 3
"""For a run without a verdict; those of a verdict are in ``compare.verdict``."""
EXIT_INTERRUPTED = 130
"""For a run that was interrupted, by Ctrl-C say."""
