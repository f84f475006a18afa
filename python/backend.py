"""What `pip install .` calls to build the wheel (PEP 517): ./weft wheel."""

import os
import subprocess
import sys


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    # The python3 that pip runs on is to be the first on the path.
    environment = dict(os.environ)
    environment["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environment.get("PATH", "")
    # pip hides the modules of its own environment; ./weft looks for its own.
    environment.pop("PYTHONPATH", None)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    run = subprocess.run(
        [os.path.join(root, "weft"), "wheel", wheel_directory],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )
    return os.path.basename(run.stdout.strip())
