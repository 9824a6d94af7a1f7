"""The equations of a docstring, typeset: as LaTeX, and as MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert

GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "lambda", "mu", "pi", "rho", "sigma", "tau")
FUNCTIONS = {"min": r"\min", "max": r"\max", "log": r"\log", "exp": r"\exp", "sum": r"\sum", "grad": r"\nabla"}
SIGNS = {"<-": r"\leftarrow", "!=": r"\neq", "<=": r"\leq", ">=": r"\geq", "...": r"\ldots", "||": r"\|", "*": r"\cdot"}
TOKEN = re.compile(
    r"`[^`]*`|[A-Za-z]{2,}'s\b|[A-Za-z]+\d?~?|\d[\d.]*|<-|!=|<=|>=|\.\.\.|\|\||,\s{2,}|\s+|[_^]\{|[_^]|."
)
LINE = re.compile(r"(?:([A-Za-z][\w ]*?)\s{2,}(?!\s*(?:=|<-)))?(.*?)(?:,?(?:\s{2,}\(([^()]*)\)| \((Eq[^()]*)\)))?")


def typeset(block: str) -> str:
    """A table of equations, a row a line: what it is of, the equation, which a reader's `alttext` has as it is written,
    and its number in the paper.

    Args:
        block: lines such as `    critic   L_Q  = E[(Q(s, a) - y)^2]     (Eq. 5)`.
    """
    rows = []
    for line in block.splitlines():
        found = LINE.fullmatch(line.strip())
        assert found is not None, line
        of, equation, *numbers = (part or "" for part in found.groups())
        number = "".join(f"({html.escape(number)})" for number in numbers if number)
        formula = convert(latex(equation)).replace("<math ", f'<math alttext="{html.escape(equation)}" ', 1)
        rows.append(f"<tr><td>{of}</td><td>{formula}</td><td>{number}</td></tr>")
    return '<table class="equations">\n' + "\n".join(rows) + "\n</table>"


def latex(text: str) -> str:
    """An equation of a docstring as LaTeX: `gamma`, `Q_i'(s, a)`, `a ~ pi(s)`, `a~`, `x <- y`, and words."""
    tokens = [token for token in TOKEN.findall(text) if token]
    out: list[str] = []
    words: list[str] = []  # of a text that continues
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in ("_", "^") and i + 1 < len(tokens):
            i += 1
            script = _symbol(tokens[i])
            if out and out[-1] in FUNCTIONS.values() and tokens[i + 1 : i + 2] == ["'"]:  # max_a', but not Q_i'
                script, i = f"{script}'", i + 1
            out.append(f"{token}{{{script}}}")
        elif _is_word(token):
            words.append(token.strip("`"))
            if not (tokens[i + 1 : i + 2] and tokens[i + 1].isspace() and _is_word("".join(tokens[i + 2 : i + 3]))):
                if out and out[-1] == " ":
                    out[-1] = r"\ "
                out.append(rf"\text{{{' '.join(words)}}}".replace("_", r"\_"))
                words.clear()
        elif token.isspace():
            before = out[-1] if out else ""
            space = r"\ " if before.startswith(r"\text") else r"\," if before == r"\log" else " "
            out += [] if words else [space]
        else:
            out.append(_symbol(token))
        i += 1
    return "".join(out).strip()


def _is_word(token: str) -> bool:
    """Whether a token is a word: neither a symbol nor the name of a function."""
    name = token.strip("`")
    return len(name) > 1 and name[0].isalpha() and not name[-1].isdigit() and name[-1] != "~" and not _known(name)


def _known(name: str) -> bool:
    return name in GREEK or name in FUNCTIONS or name == "eps"


def _symbol(token: str) -> str:
    if token.endswith("~") and len(token) > 1:
        return rf"\tilde{{{_symbol(token[:-1])}}}"
    if token in GREEK:
        return rf"\{token}"
    if token.startswith(","):
        return r",\quad " if len(token) > 1 else ","
    if re.fullmatch(r"[A-Za-z]\d", token):
        return f"{token[0]}_{{{token[1]}}}"
    if len(token) > 1 and token[0].isalpha() and not _known(token):
        return rf"\text{{{token}}}"
    if token == "~":
        return r"\sim"
    return FUNCTIONS.get(token, SIGNS.get(token, r"\epsilon" if token == "eps" else token))
