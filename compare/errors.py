"""Exceptions that end a run with a one-line message: the request is wrong, or no verdict is possible."""


class RequestError(ValueError):
    """The request cannot be carried out; the message says in one line what is wrong and what to do.

    The command prints the message to stderr and exits with status 2; ``compare.run`` raises it.
    """


class NoVerdictError(RuntimeError):
    """A run did not reach a verdict, although the request was valid; exit status 3."""


class StorageError(NoVerdictError):
    """A file of a run could not be written (the disk is full, say); earlier files are kept."""


EXIT_REQUEST = 2
"""Exit status of the command for a request that cannot be carried out."""
EXIT_NO_VERDICT = 3
"""Exit status for a run without a verdict; ``compare.verdict`` has the exit statuses of verdicts."""
EXIT_INTERRUPTED = 130
"""Exit status for an interrupted run (by Ctrl-C, say)."""
