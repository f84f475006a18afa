"""Models by name: make("vit_b_16"). Their parameters have torchvision's names."""

from weft._weft.models import *  # noqa: F401, F403
