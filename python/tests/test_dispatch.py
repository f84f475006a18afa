"""Models larger than memory: weights on devices and on disk, with Accelerate's words."""

import json
import os
import tempfile
import unittest

import weft
from weft import nn

OPTIONS = {"image_size": 8, "classes": 3, "patch": 4, "layers": 3, "heads": 2, "width": 8, "hidden": 16}


def small_vit():
    return weft.models.make("vit_b_16", **OPTIONS).eval()


def empty_vit():
    with nn.init_empty_weights():
        return small_vit()


class Dispatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(folder.name, "model.safetensors")
        whole = small_vit()
        nn.init.normal_(whole.heads.head.weight, 0.0, 0.1)
        self.images = weft.randn(2, 3, 8, 8)
        self.expected = whole(self.images).tolist()
        self.bytes = sum(p.nbytes for p in whole.parameters())
        self.whole = whole
        weft.save_file(whole.state_dict(), self.file)

    def test_a_model_without_memory_gets_its_weights_by_a_map(self):
        model = empty_vit()
        with self.assertRaises(weft.Error):
            model.heads.head.weight.sum()
        for limit in (self.bytes * 2 // 3, f"{self.bytes // 1000 + 1}KB"):
            places = nn.infer_auto_device_map(model, {"cpu": limit})
            on_disk = [name for name, place in places.items() if place == "disk"]
            self.assertEqual(bool(on_disk), limit == self.bytes * 2 // 3)
            loaded = nn.load_checkpoint_and_dispatch(empty_vit(), self.file, max_memory={"cpu": limit})
            self.assertEqual(loaded.hf_device_map, places)
            self.assertEqual(loaded(self.images).tolist(), self.expected)
            self.assertFalse(loaded(self.images).requires_grad)
        with self.assertRaisesRegex(weft.Error, r"for inference: call eval\(\) first"):
            loaded.train()(self.images)

    def test_maps_are_dicts_and_files(self):
        places = {"": "cpu", "encoder.layers": "disk", "heads": weft.device("cpu")}
        path = os.path.join(self.folder, "places.json")
        with open(path, "w") as file:
            json.dump({"": "cpu", "encoder.layers": "disk", "heads": "cpu"}, file)
        for device_map in (places, path):
            model = nn.load_checkpoint_and_dispatch(empty_vit(), self.file, device_map)
            self.assertEqual(model.hf_device_map, {"": "cpu", "encoder.layers": "disk", "heads": "cpu"})
            self.assertEqual(model(self.images).tolist(), self.expected)

    def test_auto_needs_no_more_than_a_model(self):
        places = nn.infer_auto_device_map(empty_vit())
        self.assertTrue(places)
        self.assertNotIn("disk", places.values())  # there is room for a few kilobytes
        loaded = nn.load_checkpoint_and_dispatch(empty_vit(), self.file)
        self.assertEqual(loaded.hf_device_map, places)
        for row, expected in zip(loaded(self.images).tolist(), self.expected):
            for value, other in zip(row, expected):
                self.assertAlmostEqual(value, other, places=4)
        whole = nn.dispatch_model(self.whole)
        self.assertEqual(whole.hf_device_map, places)

    def test_a_place_is_a_map_of_all_weights(self):
        for place in ("cpu", "disk", weft.device("cpu")):
            model = nn.load_checkpoint_and_dispatch(empty_vit(), self.file, place)
            self.assertEqual(model.hf_device_map, {"": str(place)})
            self.assertEqual(model(self.images).tolist(), self.expected)

    def test_a_model_in_memory_offloads_to_a_folder(self):
        places = {"": "disk", "encoder.ln": "cpu", "heads": "cpu"}
        with self.assertRaisesRegex(weft.Error, "is to stay on disk, but"):
            nn.dispatch_model(self.whole, places)
        folder = os.path.join(self.folder, "offload")
        model = nn.dispatch_model(self.whole, places, offload_folder=folder)
        self.assertIs(model, self.whole)
        self.assertEqual(model(self.images).tolist(), self.expected)
        written = weft.load_file(os.path.join(folder, "offloaded.safetensors"))
        self.assertIn("class_token", written)
        self.assertNotIn("heads.head.weight", written)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(weft.Error, 'no module or tensor "head"'):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, {"": "cpu", "head": "disk"})
        with self.assertRaisesRegex(weft.Error, 'unknown device "tape": expected cpu, disk'):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, {"": "tape"})
        with self.assertRaisesRegex(weft.Error, 'did you mean "disk"'):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, {"": "diks"})
        with self.assertRaisesRegex(weft.Error, 'no file "aut"; expected auto, .* did you mean "auto"'):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, "aut", {"cpu": "1GB"})
        with self.assertRaisesRegex(weft.Error, "disk has no memory budget"):
            nn.infer_auto_device_map(empty_vit(), {"disk": "1GB"})
        with self.assertRaisesRegex(TypeError, "a place is a device"):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, {"": 1.5})
        with self.assertRaisesRegex(weft.Error, "the layer .* alone has"):
            nn.infer_auto_device_map(empty_vit(), {"cpu": 10})
        with self.assertRaisesRegex(weft.Error, "does not say what its layers are"):
            nn.infer_auto_device_map(nn.Linear(2, 2), {"cpu": 10})
        with self.assertRaisesRegex(weft.Error, "sequential"):
            nn.load_checkpoint_and_dispatch(empty_vit(), self.file, "sequential")


if __name__ == "__main__":
    unittest.main()
