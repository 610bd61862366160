"""How numbers are put into words, in lines and tables alike."""


def counted(number: int, word: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "worker"), counted(4, "worker")
        ('1 worker', '4 workers')
    """
    ending = "es" if word.endswith("s") else "s"
    return f"{number} {word}{'' if number == 1 else ending}"


def decimals(value: float, digits: int = 4) -> str:
    """Fixed decimals, or an exponent where they would be a long row of digits.

    Example:
        >>> decimals(0.25), decimals(2.5, 2), decimals(1e30)
        ('0.2500', '2.50', '1e+30')
    """
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"
