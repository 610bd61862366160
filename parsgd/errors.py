"""The one exception for what a user can mend."""


class UserError(ValueError):
    """A mistake in what was asked, with a message that says what, why and what to do.

    The console command prints the message alone (``debug=true`` shows the traceback);
    in a script it is an ordinary ``ValueError``.
    """
