"""Exceptions that end a run with a one-line message: the request is wrong, or no verdict is possible."""

EXIT_REQUEST = 2
"""Exit status of the command for a request that cannot be carried out."""
EXIT_NO_VERDICT = 3
"""Exit status for a run without a verdict; ``compare.verdict`` has the exit statuses of verdicts."""
EXIT_INTERRUPTED = 130
"""Exit status for an interrupted run (by Ctrl-C, say)."""


NOT_BUILT = "run.build() must be called before training, because the weights that it returns are compared"
"""What a trainer is told that never builds its model."""


class RequestError(ValueError):
    """The request cannot be carried out; the message says in one line what is wrong and what to do.

    The command prints the message to stderr and exits with status 2; ``compare.run`` raises it.

    Attributes:
        blames: whether the message says which function of the user's is at fault, and where it is.
        status: the command's exit status.
    """

    blames = False
    status = EXIT_REQUEST

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class NotComparableError(RequestError):
    """The request is right, but what is recorded is of another task by now, so that there is no verdict."""

    status = EXIT_NO_VERDICT


class NoVerdictError(RuntimeError):
    """A run did not reach a verdict, although the request was valid; exit status 3."""

    status = EXIT_NO_VERDICT


class PartFailedError(NoVerdictError):
    """A trainer failed in a task of a cluster that is not its chief."""


class StorageError(NoVerdictError):
    """A file of a run could not be written (the disk is full, say); earlier files are kept.

    Attributes:
        reason: the message without what to do ``then``.
    """

    def __init__(self, reason: str, then: str = "") -> None:
        super().__init__(f"{reason}, {then}" if then else reason)
        self.reason, self.then = reason, then


class TrainerFailedError(RuntimeError):
    """A user's trainer raised in another process; the message says in one line what, where, and what to do.

    Args:
        kind: ``NO_MEMORY`` or ``MAY_PASS`` where the failure may have had a passing cause; else empty.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text, kind)
        self.text, self.kind = text, kind

    def __str__(self) -> str:
        return self.text


LOST_TASK = ("UnavailableError", "AbortedError")
"""TensorFlow's errors where another process of the cluster has died."""
NO_MEMORY, MAY_PASS = "no memory", "may pass"
"""The kinds of failure after which the same training may go well."""


def kind_of(error: BaseException | None) -> str:
    """Whether a failure may have had a passing cause: ``NO_MEMORY``, ``MAY_PASS`` or empty."""
    if isinstance(error, TrainerFailedError):
        return error.kind
    if isinstance(error, MemoryError) or "ResourceExhausted" in type(error).__name__:  # TensorFlow's
        return NO_MEMORY
    if isinstance(error, OSError) or type(error).__name__ in LOST_TASK:
        return MAY_PASS
    return "" if error is None else kind_of(error.__cause__)


class EndedEarlyError(Exception):
    """Training ends here, for a reason that is no mistake in the code; what was recorded is compared.

    Attributes:
        epoch: the epoch in which this was decided.
        step: the step of that epoch after which it was decided; None for the end of the epoch.
        what: the reason, for messages.
    """

    def __init__(self, epoch: int, step: int | None, what: str) -> None:
        where = f"epoch {epoch}" if step is None else f"step {step:,} of epoch {epoch}"
        super().__init__(f"after {where} {what}")
        self.epoch, self.step, self.what = epoch, step, what
