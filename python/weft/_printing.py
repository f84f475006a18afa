"""Tensors as text, as NumPy prints its arrays: the same digits, columns, line breaks and omissions."""

import math

from weft import _weft

_WIDTH, _THRESHOLD, _EDGE, _PRECISION = 75, 1000, 3, 8


def _edges(x):
    """Of a large tensor the elements that are shown, as nested lists."""
    return [e for i in _shown(len(x), True) if i is not None for e in _edges(x[i])] if x.ndim else [x.item()]


def _shown(size, is_long):
    """The indices that are shown, with None where others are left out."""
    return [*range(_EDGE), None, *range(size - _EDGE, size)] if is_long and size > 2 * _EDGE else range(size)


def _split(number):
    """The integer part and the decimals of "1.50" without the zeros at their end."""
    whole, _, decimals = number.partition(".")
    return whole, decimals.rstrip("0")


class _Floats:
    """One format for all: with an exponent where the numbers differ too much, or are too large or small."""

    def __init__(self, values, dtype):
        self.dtype = dtype
        finite = [v for v in values if math.isfinite(v)]
        sizes = [abs(v) for v in finite if v]
        digits = {8: 8, 4: 6}.get(dtype.itemsize, 3)  # that numbers of the type have for certain
        self.has_exponent = bool(sizes) and (
            max(sizes) >= 10**digits or min(sizes) < 1e-4 or max(sizes) / min(sizes) > 1000
        )
        parts = [self._parts(v) for v in finite] or [("", "", "")]
        self.decimals = max(len(decimals) for _, decimals, _ in parts)
        self.left = max(len(whole) for whole, _, _ in parts)
        self.exponent = max(len(exponent) for _, _, exponent in parts)
        self.right = self.decimals + self.exponent
        for v in values:
            if not math.isfinite(v):
                room = 4 if v == -math.inf else 3
                self.left = max(self.left, room - (self.right + 1 if finite else 0))
        self.has_finite = bool(finite)

    def _parts(self, value):
        """The integer part, the decimals and the exponent."""
        digits = _weft._shortest(value, self.dtype)
        mantissa, exponent = digits.split("e")
        if self.has_exponent:
            if len(mantissa.partition(".")[2]) > _PRECISION:
                mantissa, exponent = f"{value:.{_PRECISION}e}".split("e")
            return *_split(mantissa), "e" + exponent
        decimals = max(0, len(mantissa.partition(".")[2]) - int(exponent))
        number = f"{value:.{_PRECISION}f}" if decimals > _PRECISION else f"{float(digits):.{decimals}f}"
        return *_split(number), ""

    def __call__(self, value):
        if not math.isfinite(value):
            text = "nan" if math.isnan(value) else "-inf" if value < 0 else "inf"
            return text.rjust(self.left + self.right + (1 if self.has_finite else 0))
        if self.has_exponent:
            # All have as many digits, though fewer would do for some.
            mantissa, exponent = f"{value:.{self.decimals}e}".split("e")
            whole, _, decimals = mantissa.partition(".")
            return whole.rjust(self.left) + "." + decimals + "e" + exponent
        whole, decimals, _ = self._parts(value)
        return (whole.rjust(self.left) + "." + decimals).ljust(self.left + 1 + self.decimals)


def _format_of(values, dtype, ndim):
    if dtype.is_floating_point:
        return _Floats(values, dtype)
    # A column of bools is as wide as False, whatever it holds.
    width = 5 if dtype is _weft.bool and ndim > 0 else max((len(str(v)) for v in values), default=0)
    return lambda value: str(value).rjust(width)


def _body(x, separator, prefix, suffix):
    """The numbers between brackets. Lines behind the first begin under the first number."""
    is_long = x.numel() > _THRESHOLD
    values = x.detach().cpu()
    element = _format_of(_edges(values) if is_long else values.reshape(-1).tolist(), x.dtype, x.ndim)
    if x.ndim == 0:
        return element(values.item())

    def lines(part, indent, width):
        if part.ndim == 0:
            return element(part.item())
        items = [part[i] if i is not None else None for i in _shown(len(part), is_long)]
        if part.ndim == 1:
            text, line = "", indent
            room = width - max(len(separator.rstrip()), 1)
            for number, item in enumerate(items):
                word = "..." if item is None else lines(item, indent, width)
                if len(line) + len(word) > room and len(line) > len(indent):
                    text += line.rstrip() + "\n"
                    line = indent
                line += word + (separator if number + 1 < len(items) else "")
            text += line
        else:
            end = separator.rstrip() + "\n" * (part.ndim - 1)
            text = end.join(
                indent + ("..." if item is None else lines(item, indent + " ", width - 1))
                for item in items
            )
        return "[" + text[len(indent):] + "]"

    return lines(values, " " * (len(prefix) + 1), _WIDTH - len(suffix))


def text(x):
    if x.ndim == 0 and x.dtype.is_floating_point:
        return repr(float(_weft._shortest(x.item(), x.dtype)))
    return _body(x, " ", "", "")


def represent(x):
    notes = []
    if x.dtype not in (_weft.float32, _weft.int64, _weft.bool):
        notes.append(f"dtype={x.dtype}")
    if str(x.device) != "cpu":
        notes.append(f"device={str(x.device)!r}")
    if x.grad_fn:
        notes.append(f"grad_fn=<{x.grad_fn}>")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    body = f"[], shape={x.shape}" if x.numel() == 0 and x.ndim != 1 else None
    if body is None:
        body = "[]" if x.numel() == 0 else _body(x, ", ", "tensor(", ")")
    result = "tensor(" + body
    if notes:
        last = len(result) - (result.rfind("\n") + 1)
        note = ", ".join(notes)
        gap = "," + ("\n" + " " * len("tensor(") if last + len(note) + 3 > _WIDTH else " ")
        result += gap + note
    return result + ")"
