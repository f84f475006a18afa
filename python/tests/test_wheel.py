"""The wheel: its files, what it says of them, and that it can be imported from where it is unpacked."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

import weft

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(weft.__file__)))


class Wheel(unittest.TestCase):
    def make(self, folder):
        words = [sys.executable, os.path.join("python", "wheel.py"), PACKAGE, folder]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout.strip()

    def test_a_wheel_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.make(folder)
            self.assertRegex(os.path.basename(path), r"^weft-[0-9.]+-cp3\d+-cp3\d+-linux_\w+\.whl$")
            self.assertEqual(os.listdir(folder), [os.path.basename(path)])
            with open(path, "rb") as file:
                first = file.read()
            with open(self.make(folder), "rb") as file:
                self.assertEqual(file.read(), first)
            with zipfile.ZipFile(path) as wheel:
                names = wheel.namelist()
                record = next(name for name in names if name.endswith(".dist-info/RECORD"))
                rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
                self.assertEqual([row[0] for row in rows], names)
                for name, digest, size in rows:
                    if name == record:
                        continue
                    data = wheel.read(name)
                    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, int(size)), ("sha256=" + found, len(data)), name)
                wheel.extractall(os.path.join(folder, "there"))
            code = "import os, weft; print(os.path.dirname(os.path.dirname(weft.__file__)), weft.ones(2).sum().item())"
            environment = dict(os.environ, PYTHONPATH=os.path.join(folder, "there"))
            said = subprocess.run(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=folder,
                env=environment, timeout=60,
            ).stdout
            self.assertEqual(said, os.path.join(folder, "there") + " 2.0\n")


if __name__ == "__main__":
    unittest.main()
