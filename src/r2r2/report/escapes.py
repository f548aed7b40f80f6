"""Text from anywhere, such that Markdown and LaTeX show it and obey none of it."""

import re


def markdown_text(text: str) -> str:
    r"""Text that Markdown, and the HTML in it, leave as it is.

    Example:
        >>> print(markdown_text("a|b_c <script>"))
        a\|b\_c &lt;script&gt;
    """
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", plain.replace(">", "&gt;"))


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin an option, and so would a star
    "*": "{*}",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    **{character: "\\" + character for character in "#$%&_"},
}


def latex_text(text: str) -> str:
    r"""Text that any LaTeX sets as it is; what it has no letter for, by its number.

    Example:
        >>> print(latex_text("50 % of a_b & 3 ± 1"))
        50 \% of a\_b \& 3 $\pm$ 1
    """
    return "".join(
        LATEX.get(c, c if c.isascii() else f"{{[}}U+{ord(c):04X}]")
        for c in one_line(text)
    )


def one_line(text: str) -> str:
    """Text without line breaks and what else cannot be printed.

    Example:
        >>> one_line("a" + chr(10) + "b" + chr(27))
        'a b?'
    """
    spaced = re.sub(r"\s+", " ", text)
    return "".join(c if c.isprintable() else "?" for c in spaced)
