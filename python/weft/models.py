"""Models by name: make("vit_b_16"), whose parameters have torchvision's names; and language models:

    model = models.gpt("gpt_mini")
    bytes(model.generate(list(b"the "), 50, temperature=0.8))
    models.Gpt.from_pretrained("gpt2/")"""

from weft._weft.models import *  # noqa: F401, F403
