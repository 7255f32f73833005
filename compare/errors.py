"""The one exception that means "the request is wrong", as opposed to "the program is"."""


class RequestError(ValueError):
    """A request that cannot be carried out: one line that says what is wrong and what to do.

    The command prints it to stderr and exits with status 2; ``compare.run`` raises it.
    """


class NoVerdictError(RuntimeError):
    """A run that could not come to a verdict, through no fault of the request; exit status 3."""
