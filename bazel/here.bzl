"""here(): labels of this repository in macros that other repositories use."""

def here(label):
    """What the label means in Weft's own BUILD files, wherever the macro is used that names it."""
    return str(Label(label))
