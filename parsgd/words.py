"""How numbers are put into words, in lines and tables alike."""

MISSING = "-"  # in tables to read; in the files for programs it is a null


def counted(number: int, word: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "worker"), counted(4, "worker")
        ('1 worker', '4 workers')
    """
    ending = "es" if word.endswith("s") else "s"
    return f"{number} {word}{'' if number == 1 else ending}"


def number(value: float | None, digits: int = 3) -> str:
    """A number for reading: few digits, thousands grouped, no exponent where avoidable.

    Example:
        >>> number(12345.6), number(0.01234), number(3.0), number(2e-7), number(1e30)
        ('12,346', '0.0123', '3', '2e-07', '1e+30')
        >>> number(None)
        '-'
    """
    if value is None:
        return MISSING
    if 100 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def decimals(value: float, digits: int = 4) -> str:
    """Fixed decimals, or an exponent where they would be a long row of digits.

    Example:
        >>> decimals(0.25), decimals(2.5, 2), decimals(1e30)
        ('0.2500', '2.50', '1e+30')
    """
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"
