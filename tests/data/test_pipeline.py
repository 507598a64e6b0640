import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from PIL import Image

from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data
from rn50.data import recordio, sampling
from rn50.data.dataset import load_table
from rn50.data.pack import pack_images
from rn50.data.pipeline import (
    NOT_COUNTED,
    Source,
    build_eval_source,
    build_train_source,
    decoder_options,
)
from rn50.data.recordio import MAGIC
from tests.conftest import refused

TRAIN = 37
VAL = 23
SEEDS = {"shuffle": 11, "augment": 12, "flip": 13, "operations": 14}
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]


def encode(pixels: Pixels, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def smooth(number: int, height: int, width: int) -> Pixels:
    """Red follows the row, green the column, blue the number; all but linear, so that a bilinear
    resize and a JPEG keep it within a level or two."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [
        20 + 200 * y / height,
        20 + 200 * x / width,
        np.full(y.shape, 5 * number % 250),
    ]
    return np.rint(np.stack(planes, axis=2)).astype(np.uint8)


def rough(seed: int, height: int, width: int) -> Pixels:
    return np.random.default_rng(seed).integers(
        0,
        256,
        (height, width, 3),
        np.uint8,
    )


def pack(
    folder: Path, train: Sequence[bytes], val: Sequence[bytes] | None = None
) -> Data:
    """A packed set with a class for each image, so that a label is the image's number."""
    for split, images in (("train", train), ("val", train if val is None else val)):
        for number, image in enumerate(images):
            name = folder / "images" / split / f"class{number:03d}"
            name.mkdir(parents=True)
            (name / "image.JPEG").write_bytes(image)
    manifest = pack_images(folder / "images", folder / "set")
    return Data(
        path=str(folder / "set"),
        classes=len(manifest.classes),
        train_samples=manifest.splits["train"].samples,
        eval_samples=manifest.splits["val"].samples,
        crop_px=16,
        eval_resize_px=20,
    )


def with_settings(data: Data, **settings: Any) -> Data:
    return Data.model_validate(data.model_dump() | settings)


def plan_of(data: Data, per_rank: int, ranks: int = 1) -> Plan:
    """One batch all along."""
    return Plan(
        ranks,
        data.train_samples,
        data.last_batch,
        (Segment(1, 0, 0, per_rank, active_ranks=ranks),),
    )


def training(
    data: Data, per_rank: int = 4, rank: int = 0, ranks: int = 1, **seeds: int
) -> Source:
    return build_train_source(
        data, plan_of(data, per_rank, ranks), rank=rank, seeds=SEEDS | seeds
    )


def evaluation(
    data: Data,
    per_rank: int = 4,
    rank: int = 0,
    ranks: int = 1,
) -> Source:
    return build_eval_source(
        data,
        batch_per_rank=per_rank,
        rank=rank,
        ranks=ranks,
    )


def labels_of(sources: Sequence[Source], batches: int) -> NDArray[np.int64]:
    """Labels over all ranks: (batches, ranks, per rank)."""
    found = [
        [source.next().labels.asnumpy() for source in sources] for _ in range(batches)
    ]
    return np.array(found).astype(np.int64)


def pixels_of(images: Any, data: Data) -> Floats:
    """Un-normalised NHWC pixels of a batch."""
    planes = images.asnumpy().transpose(0, 2, 3, 1).astype(float)
    return planes * data.std + data.mean


def bilinear(
    image: Pixels, height: int, width: int, scale: float | None = None
) -> Floats:
    """Resize with half-pixel centres and no antialiasing, rounded to levels as DALI does.

    With `scale` both axes keep exactly that scale about the centre, though the size is rounded.
    """

    def weights(old: int, new: int) -> Floats:
        centred = np.arange(new) + 0.5 - new / 2
        place = np.clip(centred / (scale or new / old) + old / 2 - 0.5, 0, old - 1)
        low = np.minimum(place.astype(int), max(0, old - 2))
        matrix = np.zeros((new, old))
        rows = np.arange(new)
        matrix[rows, low] = 1 - (place - low)
        matrix[rows, np.minimum(low + 1, old - 1)] += place - low
        return matrix

    vertical = np.tensordot(
        weights(image.shape[0], height), image.astype(float), (1, 0)
    )
    return np.rint(
        np.tensordot(weights(image.shape[1], width), vertical, (1, 1)).swapaxes(0, 1)
    )


def eval_reference(image: Pixels, data: Data) -> Floats:
    """Shorter side to eval_resize_px, aspect kept, centre crop, mean and std, CHW.

    Where an odd number of rows is left over the crop lies lower, not higher.
    """
    height, width = image.shape[:2]
    scale = data.eval_resize_px / min(height, width)
    resized = bilinear(
        image,
        round(height * scale),
        round(width * scale),
        scale,
    )
    top, left = ((edge - data.crop_px + 1) // 2 for edge in resized.shape[:2])
    crop = resized[top : top + data.crop_px, left : left + data.crop_px]
    return ((crop - data.mean) / data.std).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Images of one grey level each: 6 x their number."""
    images = [encode(np.full((20, 24, 3), 6 * n, np.uint8)) for n in range(TRAIN)]
    return pack(tmp_path_factory.mktemp("numbered"), images, images[:VAL])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """JPEG of several shapes, with structure."""
    shapes = [(40, 60), (60, 40), (33, 47), (20, 20), (21, 80), (18, 19), (200, 151)]
    images = [encode(rough(n, *shape), "JPEG") for n, shape in enumerate(shapes)]
    return pack(tmp_path_factory.mktemp("photos"), images)


# --- which images -------------------------------------------------------------------------------


def test_a_rank_without_a_share_skips_those_steps(numbered: Data) -> None:
    """Also to the end of the run: prefetching then finds nothing more, and does not search on."""
    # two steps of both ranks
    segments = (
        Segment(1, 0, 0, 3, 2),
        Segment(2, 2, 12, 6, 1),
    )
    plan = Plan(2, TRAIN, "mix", segments)
    order = sampling.TrainOrder(plan, SEEDS["shuffle"])
    stored = load_table(Path(numbered.path), "train")["label"]
    for rank, steps in ((0, 5), (1, 2)):
        source = build_train_source(
            numbered,
            plan,
            rank=rank,
            seeds=SEEDS,
        )
        for step in range(1, steps + 1):
            labels = source.next().labels.asnumpy()
            assert labels.tolist() == stored[order.batch(step, rank).images].tolist()
    with pytest.raises(StopIteration):
        source.next()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("per_rank", [4, 23])
def test_an_evaluation_covers_every_image_once_each_time(
    numbered: Data, ranks: int, per_rank: int
) -> None:
    sources = [evaluation(numbered, per_rank, rank, ranks) for rank in range(ranks)]
    batches = sampling.eval_batches(VAL, ranks, per_rank)
    for _ in range(2):
        labels = labels_of(sources, batches).ravel()
        assert sorted(labels[labels != NOT_COUNTED]) == list(range(VAL))
        assert np.sum(labels == NOT_COUNTED) == batches * ranks * per_rank - VAL


# --- what is done to them -----------------------------------------------------------------------


def test_evaluation_equals_a_numpy_reference(tmp_path: Path) -> None:
    """Lossless images: within one grey level, the rounding after the resize."""
    shapes = [
        (20, 20),
        (40, 60),
        (60, 40),
        (33, 47),
        (47, 33),
        (21, 80),
        (19, 18),
        (10, 12),
    ]
    images = [rough(number, *shape) for number, shape in enumerate(shapes)]
    data = pack(tmp_path, [encode(image) for image in images])
    found, labels = evaluation(data, len(images)).next()
    table = load_table(Path(data.path), "val")["label"]
    assert labels.asnumpy().tolist() == table.tolist()
    for tensor, label in zip(found.asnumpy(), table, strict=True):
        difference = np.abs(tensor - eval_reference(images[label], data)).max(
            axis=(1, 2)
        )
        assert np.all(difference <= 1.01 / np.array(data.std))


def test_training_windows_and_mirroring_are_those_that_sampling_decides(
    tmp_path: Path,
) -> None:
    images = [smooth(number, 60 + 5 * number, 150 - 9 * number) for number in range(9)]
    data = with_settings(
        pack(tmp_path, [encode(image) for image in images]), area=(0.1, 0.6)
    )
    table = load_table(Path(data.path), "train")
    order = sampling.TrainOrder(plan_of(data, 9), SEEDS["shuffle"])
    source = training(data, 9)
    mirrored: list[int] = []
    for step in range(1, 5):
        numbers, places, epochs = order.batch(step, 0)
        assert epochs.tolist() == [step] * 9
        heights, widths = (
            table[side][numbers].astype("f4") for side in ("height", "width")
        )
        anchors, shapes = sampling.crop_windows(
            heights,
            widths,
            places,
            SEEDS["augment"],
            area=data.area,
            aspect=data.aspect,
        )
        flip = sampling.flips(places, SEEDS["flip"])
        mirrored += flip.tolist()
        batch, labels = source.next()
        assert labels.asnumpy().tolist() == table["label"][numbers].tolist()
        found = pixels_of(batch, data)
        for index, number in enumerate(labels.asnumpy().astype(int)):
            size = images[number].shape[:2]
            top, left = np.rint(anchors[index] * size).astype(int)
            bottom, right = np.rint((anchors[index] + shapes[index]) * size).astype(int)
            wanted = bilinear(images[number][top:bottom, left:right], 16, 16)
            if flip[index]:
                wanted = wanted[:, ::-1]
            # A window may be rounded the other way at a tie: 3.4 levels a row at most.
            assert np.abs(found[index] - wanted).max() < 5
    assert 0 < sum(mirrored) < len(mirrored)


@pytest.mark.parametrize("last_batch", ["mix", "pad"])
def test_plain_epochs_show_stored_order_and_the_unmirrored_centre(
    tmp_path: Path, last_batch: str
) -> None:
    """Epochs 1 and 2 shuffled and augmented, from epoch 3 on neither, from its first image on."""
    images = [smooth(number, 40, 40 + 10 * number) for number in range(5)]
    packed = pack(tmp_path, [encode(image) for image in images])
    data = with_settings(
        packed,
        no_augment_from_epoch=3,
        last_batch=last_batch,
    )
    stored = load_table(Path(data.path), "train")["label"]
    order = sampling.TrainOrder(plan_of(data, 4), SEEDS["shuffle"])
    sources = [training(data, 2, rank, 2) for rank in (0, 1)]
    shuffled = augmented = 0
    for step in range(1, 12):
        batches = [source.next() for source in sources]
        labels = np.concatenate([batch.labels.asnumpy() for batch in batches]).astype(
            int
        )
        pixels = np.concatenate([pixels_of(batch.images, data) for batch in batches])
        drawn, places, epochs = order.batch(step, 0)
        within = places % (8 if last_batch == "pad" else 5) % 5
        plain = epochs >= 3
        assert labels.tolist() == stored[np.where(plain, within, drawn)].tolist()
        shuffled += (drawn != within)[~plain].sum()
        for number, found, is_plain in zip(labels, pixels, plain, strict=True):
            left = (10 * number + 8) // 2
            wanted = bilinear(images[number][4:36, left : left + 32], 16, 16)
            assert not is_plain or np.abs(found - wanted).max() < 5
            augmented += not is_plain and np.abs(found - wanted).max() >= 5
    assert shuffled > 4
    assert augmented > 8


OPERATIONS = {
    "padding": (0.1, 0.3),
    "scale": (0.8, 2.2),
    "aspect": (0.7, 1.4),
    "rotation_deg": (-40.0, 30.0),
    "brightness": (-0.2, 0.3),
    "contrast": (0.7, 1.2),
    "noise": (0.02, 0.2),
}


def augmented_reference(
    image: Pixels, u: Floats, ranges: dict[str, Any], tile: Floats
) -> Floats:
    """An image after nnabla's formulas, pixel by pixel, in a view of 16 px; float64."""

    def value(name: str, column: int, neutral: float) -> float:
        low, high = ranges.get(name, (neutral, neutral))
        if neutral == 1:
            return float(np.exp(np.log(low) + u[column] * np.log(high / low)))
        return float(low + u[column] * (high - low))

    height, width, pad = *image.shape[:2], 16 * value("padding", 0, 0)
    theta = value("rotation_deg", 1, 0)
    cos = np.cos(theta * np.pi / 180)
    sin = np.sin(theta * np.pi / 180)
    stretch = np.sqrt(value("aspect", 2, 1))
    scale_x, scale_y = value("scale", 3, 1) * np.array([stretch, 1 / stretch])
    room_x = (16 + 2 * pad) * scale_x - 16
    room_y = (16 + 2 * pad) * scale_y - 16
    out = np.empty((16, 16, 3))
    for iy, ix in np.ndindex(16, 16):
        dx = (ix - 7.5) / scale_x
        dy = (iy - 7.5) / scale_y
        x = (u[4] * room_x + 8) / scale_x - pad + cos * dx - sin * dy
        y = (u[5] * room_y + 8) / scale_y - pad + sin * dx + cos * dy
        x = np.clip(x * width / 16 - 0.5, 0, width - 1)
        y = np.clip(y * height / 16 - 0.5, 0, height - 1)
        left = min(int(x), width - 2)
        top = min(int(y), height - 2)
        near = image[top : top + 2, left : left + 2].astype(float)
        out[iy, ix] = np.tensordot(
            np.outer([top + 1 - y, y - top], [left + 1 - x, x - left]), near, 2
        )
    brightness = np.array([value("brightness", 9 + channel, 0) for channel in range(3)])
    contrast = np.array([value("contrast", 6 + channel, 1) for channel in range(3)])
    start = int(u[13] * (3 * 16 * 16 + 1))
    noise = tile[start : start + 3 * 16 * 16].reshape(16, 16, 3) * value("noise", 12, 0)
    return 255 * ((out / 255 + brightness - 0.5) * contrast + 0.5 + noise)


@pytest.mark.parametrize("names", [["padding"], ["noise"], list(OPERATIONS)])
def test_each_operation_equals_a_numpy_reference(
    tmp_path: Path, names: list[str]
) -> None:
    """Images of 255 levels from pixel to pixel, so a place is right to 1/1000 of a pixel."""
    sizes = [(16, 16), (20, 17), (24, 40), (37, 30), (50, 45)]
    images = [rough(number, *size) for number, size in enumerate(sizes)]
    packed = pack(tmp_path, [encode(image) for image in images])
    ranges = {name: OPERATIONS[name] for name in names}
    whole_images = {"area": (1, 1), "aspect": (0.1, 10)}
    data = with_settings(packed, **whole_images, augmentation=ranges)
    tile = sampling.noise_tile(SEEDS["operations"], 16).astype(float)
    assert abs(tile.std() - 1) < 0.05
    assert not np.array_equal(tile, sampling.noise_tile(99, 16))
    source = training(data, 5)
    for step in range(4):
        places = np.arange(5 * step, 5 * step + 5)
        u = sampling.uniforms(places, SEEDS["operations"], 14)
        flip = sampling.flips(places, SEEDS["flip"])
        batch, labels = source.next()
        for index, found in enumerate(pixels_of(batch, data)):
            image = images[int(labels.asnumpy()[index])]
            wanted = augmented_reference(image, u[index], ranges, tile)
            wanted = wanted[:, ::-1] if flip[index] else wanted
            assert np.abs(found - wanted).max() < 0.25


def test_operations_depend_on_the_place_alone_and_spare_plain_epochs(
    photos: Data,
) -> None:
    """On any number of ranks, and from a step in which a resumed run begins, bit for bit."""
    data = with_settings(photos, augmentation=OPERATIONS)
    whole = training(data, 6)
    steps = [whole.next().images.asnumpy() for _ in range(4)]
    parts = [training(data, 2, rank, 3) for rank in range(3)]
    for images in steps:
        assert np.array_equal(
            np.concatenate([p.next().images.asnumpy() for p in parts]), images
        )
    resumed = build_train_source(
        data, plan_of(data, 6), rank=0, seeds=SEEDS, first_step=4
    )
    assert np.array_equal(resumed.next().images.asnumpy(), steps[3])
    plain, bare = (
        training(with_settings(d, no_augment_from_epoch=1), 7).next().images
        for d in (data, photos)
    )
    # of rounding
    assert np.abs(pixels_of(plain, data) - pixels_of(bare, data)).max() < 0.51
    assert bits(evaluation(data)) == bits(evaluation(photos))


def kinds_of_images() -> dict[str, tuple[bytes, bytes]]:
    """Images and their RGB twins. ImageNet holds grey and CMYK files; the others a user's own
    folder may hold."""
    pixels = smooth(3, 40, 40)
    kinds = {}
    for mode in ("L", "CMYK", "P", "RGBA", "LA", "1"):
        image = Image.fromarray(pixels).convert(mode)
        out = io.BytesIO()
        image.save(
            out,
            "JPEG" if mode in ("L", "CMYK") else "PNG",
            quality=95,
        )
        kinds[mode] = out.getvalue(), encode(np.asarray(image.convert("RGB")))
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = encode(pixels, "JPEG")
    kinds["rotated by EXIF"] = encode(pixels, "JPEG", exif=exif), jpeg
    # The magic number in a JPEG comment, aligned: RecordIO splits the record there.
    comment = b"ab" + struct.pack("<I", MAGIC) + b"cdefgh" + struct.pack("<I", MAGIC)
    marked = (
        jpeg[:2]
        + b"\xff\xfe"
        + struct.pack(">H", 2 + len(comment))
        + comment
        + jpeg[2:]
    )
    assert recordio.is_split(recordio.encode(0, 0, marked))
    kinds["a record in parts"] = marked, jpeg
    return kinds


@pytest.mark.parametrize(
    ("stored", "twin"), kinds_of_images().values(), ids=kinds_of_images()
)
def test_any_kind_of_image_is_read_as_its_rgb_twin(
    tmp_path: Path, stored: bytes, twin: bytes
) -> None:
    """Not inverted, not black, and pixels as stored: EXIF is not applied, as in the reference."""
    data = pack(tmp_path, [stored, twin])
    plain = with_settings(data, augment=False, flip=False)
    for source in (training(plain, 2), evaluation(data, 2)):
        pixels = pixels_of(source.next().images, data)
        assert np.abs(pixels[0] - pixels[1]).mean() < 12
        assert pixels.std() > 10


@pytest.mark.parametrize(("make", "split"), [(training, "train"), (evaluation, "val")])
def test_records_spoilt_since_the_checks_are_named(
    tmp_path: Path, make: Any, split: str
) -> None:
    data = pack(
        tmp_path, [encode(rough(number, 30, 40), "JPEG") for number in range(4)]
    )
    path = tmp_path / "set" / f"{split}.rec"
    whole = path.read_bytes()
    for content in (whole[:-200], whole[:32] + bytes(len(whole) - 32)):
        path.unlink()  # writing into a file that a source has mapped can end the process
        path.write_bytes(content)
        told = rf"/{split}\.rec: images that decode expected, found .*`rn50 data verify --full`"
        with refused(told) as caught:
            make(data, 4).next()
        assert "\n" not in str(caught.value)


def test_channels_last_are_the_same_images(photos: Data) -> None:
    data = with_settings(photos, augment=False)
    first, last = (
        build_train_source(
            data, plan_of(data, 5), rank=0, seeds=SEEDS, layout=layout
        ).next()
        for layout in ("NCHW", "NHWC")
    )
    assert last.images.shape == (5, data.crop_px, data.crop_px, 3)
    assert np.array_equal(
        first.images.asnumpy(), last.images.asnumpy().transpose(0, 3, 1, 2)
    )


# --- batches over time --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [training, evaluation])
def test_a_batch_in_hand_does_not_change(photos: Data, make: Any) -> None:
    source = make(photos, 5)
    held = [array for _ in range(4) for array in source.next()]
    copies = [array.asnumpy().copy() for array in held]
    for _ in range(20):
        source.next()
    assert all(map(np.array_equal, (array.asnumpy() for array in held), copies))
    assert not np.array_equal(copies[0], copies[2])


def bits(source: Source, batches: int = 4) -> bytes:
    return b"".join(source.next().images.asnumpy().tobytes() for _ in range(batches))


def test_the_same_seeds_give_the_same_bits_and_every_seed_has_its_effect(
    photos: Data,
) -> None:
    data = with_settings(photos, augmentation={"noise": (0.1, 0.1)})
    first = bits(training(data))
    assert bits(training(with_settings(data, decode_threads=3, prefetch=4))) == first
    for stream in SEEDS:
        assert bits(training(data, **{stream: 99})) != first


@pytest.mark.parametrize("build", ["train", "eval"])
@pytest.mark.parametrize("device_id", [None, 0])
def test_the_hardware_decoder_gets_nearly_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, device_id: int | None
) -> None:
    """DALI checks the names of arguments when a graph is made; building it would need a GPU."""
    outputs: list[Any] = []
    monkeypatch.setattr(Pipeline, "build", lambda _: None)
    monkeypatch.setattr(
        Pipeline, "set_outputs", lambda _, *nodes: outputs.extend(nodes)
    )
    data = pack(tmp_path, [encode(smooth(0, 30, 40)), encode(smooth(1, 30, 40))])
    if build == "train":
        plan = plan_of(data, 1)
        build_train_source(
            data,
            plan,
            rank=0,
            seeds=SEEDS,
            device_id=device_id,
        )
    else:
        build_eval_source(
            data,
            batch_per_rank=1,
            rank=0,
            ranks=1,
            device_id=device_id,
        )
    operation = outputs[0].source
    while "decoders__" not in str(operation.spec):
        operation = operation.inputs[0].source
    lines = {line.strip() for line in str(operation.spec).splitlines()}
    hints = {
        "device: mixed",
        "hw_decoder_load: 0.990000",
        "preallocate_width_hint: 5980",
        "preallocate_height_hint: 6430",
    }
    assert lines & hints == (set() if device_id is None else hints)


@pytest.mark.parametrize(
    ("settings", "load"),
    [
        ({"decode_threads": 8}, 0),
        ({"decode_threads": 7}, 0.99),
        ({"decode_threads": 7, "hw_decoder_load": 0}, 0),
    ],
)
def test_cores_decode_for_a_gpu_where_they_are_enough(
    settings: Any, load: float
) -> None:
    assert decoder_options(Data(**settings), device_id=0)["hw_decoder_load"] == load
