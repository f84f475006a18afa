"""Makes Python's docstrings of the comments in C++ headers.

    docstrings.py NAMESPACE=HEADER... >docstrings_table.inc

Of each declaration, as NAMESPACE::NAME or NAMESPACE::CLASS::NAME, there is what stands above it in lines of `///`, which
outside of classes holds for those that follow without a blank line, or beside it in `//`; then what heads its section, in
lines of `//`. A line {"name", "text"}, for each, sorted, is what python/docstrings.cc includes."""

import re
import sys
import textwrap

# What has another name in Python.
WORDS = (
    (r"\{([^{}\"]*,[^{}\"]*)\}", r"(\1)"),  # {values, places}
    (r"\bAn undefined\b", "A None"),
    (r"\bundefined\b", "None"),
    (r"\ban (?=f(?:16|32|64)\b)", "a "),
    (r"\bi(32|64)\b", r"int\1"),
    (r"\bu8\b", "uint8"),
    (r"\bbf16\b", "bfloat16"),
    (r"\bf(16|32|64)\b", r"float\1"),
    (r"(?:\s*,?\s*\b[\w/]+\.(?:cc|h)\b)+$", ""),  # the file where it is
)
SCOPE = re.compile(r"(?:class|struct) (\w+)[^;()]*\{")
FUNCTION = re.compile(r"(?:[\w:<>,*&]+ )*?[\w:<>,*& ]*?[ *&](~?\w+)\(|(?:explicit )?([A-Z]\w*)\(")


def text_of(lines):
    text = " ".join(lines)
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def declarations(header):
    """(scope, name, own comment, the section's) of each, in order."""
    scopes = []  # (name, depth of braces inside, the section around it)
    depth = parentheses = 0
    own, section, previous = [], [], ""
    for line in header.splitlines():
        line = line.strip()
        code, _, beside = line.partition("//")
        kind = "///" if line.startswith("///") else "//" if line.startswith("//") else "code" if line else ""
        if kind == "///":
            own = (own if previous == "///" else []) + [line[3:].strip()]
        elif kind == "//":
            own, section = [], (section if previous == "//" else []) + [line[2:].strip()]
        elif not line:
            own = []
        previous = kind
        if kind != "code":
            continue
        inside = scopes[-1][1] if scopes else None
        scope = SCOPE.match(code)
        if parentheses == 0 and (depth == inside or not scopes) and not code.startswith(("#", "return", "using")):
            function = None if scope else FUNCTION.match(code)
            if function or scope:
                name = scope[1] if scope else function[1] or function[2]
                path = "::".join([s[0] for s in scopes] + [name])
                yield path, text_of([beside.strip()] if beside else own), text_of(section)
        if scope:
            scopes.append((scope[1], depth + 1, section))
            section = []
        if scopes:
            own = []
        depth += code.count("{") - code.count("}")
        parentheses += code.count("(") - code.count(")")
        while scopes and depth < scopes[-1][1]:
            section = scopes.pop()[2]


def main():
    texts = {}
    for argument in sys.argv[1:]:
        namespace, _, header = argument.partition("=")
        with open(header, encoding="utf-8") as file:
            # The first comment is the file's; the namespaces are open all the way.
            source = file.read().partition("#pragma once")[2]
        source = re.sub(r"^namespace .*\{$|^\}  // namespace .*$", "", source, flags=re.MULTILINE)
        for path, own, section in declarations(source):
            told = texts.setdefault(f"{namespace}::{path}", [])
            for paragraph in (own, section):
                if paragraph and paragraph not in told:
                    told.append(paragraph)
    for name, told in sorted(texts.items()):
        if told:
            text = "\n\n".join(textwrap.fill(paragraph, 88) for paragraph in told)
            print(f'{{"{name}", R"text({text})text"}},')


if __name__ == "__main__":
    main()
