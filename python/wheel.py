"""Makes a wheel of the folder that Bazel built: wheel.py PACKAGE FOLDER. Prints the wheel's path.

A wheel is a zip archive of the package and of three files about it (PEP 427); its tags name the one Python and the
machine that the extension module was built for."""

import base64
import hashlib
import importlib
import os
import sys
import sysconfig
import zipfile

NAME = "weft"


def metadata(version):
    return f"""Metadata-Version: 2.1
Name: {NAME}
Version: {version}
Summary: A tensor and autograd engine
Requires-Python: =={sys.version_info.major}.{sys.version_info.minor}.*
"""


def version_of(package):
    """What the extension module says: core/version.h holds the number."""
    sys.path.insert(0, package)
    return importlib.import_module(NAME).__version__


def tag():
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{version}-{version}-{machine}"


def contents(package, version):
    for folder, _, files in os.walk(os.path.join(package, NAME)):
        for file in sorted(files):
            # Bazel leaves files of its own beside these.
            if file.endswith((".py", ".pyi", ".so", ".typed")):
                path = os.path.join(folder, file)
                with open(path, "rb") as opened:
                    yield os.path.relpath(path, package), opened.read()
    about = f"{NAME}-{version}.dist-info"
    yield f"{about}/METADATA", metadata(version).encode()
    yield f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()


def make(package, folder):
    os.makedirs(folder, exist_ok=True)
    version = version_of(package)
    path = os.path.join(folder, f"{NAME}-{version}-{tag()}.whl")
    record = []
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data):
            # No times of files: one tree always gives one wheel.
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(info, data)

        for name, data in contents(package, version):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            add(name, data)
        name = f"{NAME}-{version}.dist-info/RECORD"
        add(name, "".join(record + [f"{name},,\n"]).encode())
    os.replace(path + ".new", path)
    return path


if __name__ == "__main__":
    print(make(sys.argv[1], sys.argv[2]))
