import io
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from PIL import Image
from scipy.ndimage import map_coordinates

from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data
from rn50.data import recordio, sampling
from rn50.data.dataset import load_table
from rn50.data.decoder import decoder_options
from rn50.data.pack import pack_images
from rn50.data.pipeline import (
    NOT_COUNTED,
    Batch,
    Source,
    build_eval_source,
    build_train_source,
)
from tests.config.test_plan import bare_plan
from tests.conftest import refused, write_file
from tests.data.images import Pixels, encode, rough

SEEDS = {"shuffle": 11, "augment": 12, "flip": 13, "operations": 14}
PX = 16
"""Side of a crop."""
Floats = NDArray[np.float64]


def png(pixels: Pixels) -> bytes:
    return encode(Image.fromarray(pixels), "PNG")


def jpeg(pixels: Pixels, **options: Any) -> bytes:
    return encode(Image.fromarray(pixels), **options)


def rough_images(shapes: Sequence[tuple[int, int]]) -> list[Pixels]:
    return [rough(seed, *shape) for seed, shape in enumerate(shapes)]


def smooth(number: int, height: int, width: int) -> Pixels:
    """Red follows the row, green the column, blue the number; all but linear, so that a bilinear
    resize and a JPEG keep it within a level or two."""
    y, x = np.mgrid[0:height, 0:width]
    red = 20 + 200 * y / height
    green = 20 + 200 * x / width
    blue = np.full(y.shape, 5 * number % 250)
    planes = [red, green, blue]
    levels = np.stack(planes, axis=2)
    return np.rint(levels).astype(np.uint8)


def pack_pixels(folder: Path, images: Sequence[Pixels]) -> Data:
    """`pack` of these pixels without loss."""
    files = [*map(png, images)]
    return pack(folder, files)


def pack(folder: Path, images: Sequence[bytes]) -> Data:
    """A packed set with a class for each image, so that a label is the image's number; they are the
    images of both splits."""
    for number, image in enumerate(images):
        for split in ("train", "val"):
            name = f"images/{split}/class{number:03d}/image.JPEG"
            write_file(folder / name, image)
    manifest = pack_images(folder / "images", folder / "set")
    return Data(
        **manifest.counts._asdict(),
        path=str(folder / "set"),
        crop_px=PX,
        eval_resize_px=20,
    )


def with_settings(data: Data, **settings: Any) -> Data:
    return Data.model_validate(data.model_dump() | settings)


def plan_of(data: Data, per_rank: int, ranks: int = 1) -> Plan:
    return bare_plan(data.train_samples, per_rank, data.last_batch, ranks)


def training(
    data: Data, per_rank: int = 4, rank: int = 0, ranks: int = 1, **more: Any
) -> Source:
    plan = plan_of(data, per_rank, ranks)
    return build_train_source(data, plan, rank=rank, **{"seeds": SEEDS} | more)


def evaluation(
    data: Data, per_rank: int = 4, rank: int = 0, ranks: int = 1, **more: Any
) -> Source:
    return build_eval_source(
        data, batch_per_rank=per_rank, rank=rank, ranks=ranks, **more
    )


def labels_of(batch: Batch) -> NDArray[np.int64]:
    return batch.labels.asnumpy().astype(int)


def pixels_of(batch: Batch, data: Data) -> Floats:
    """Un-normalised NHWC pixels of a batch."""
    planes = batch.images.asnumpy()
    pixels = planes.transpose(0, 2, 3, 1)
    return pixels.astype(float) * data.std + data.mean


def shown(
    batch: Batch, data: Data, images: Sequence[Pixels]
) -> Iterator[tuple[Pixels, Floats]]:
    """(stored image, its pixels in the batch) of each."""
    labels = labels_of(batch)
    decoded = pixels_of(batch, data)
    for label, pixels in zip(labels, decoded, strict=True):
        yield images[label], pixels


def difference(pixels: Floats, expected: Floats) -> float:
    """The largest, in levels."""
    levels = np.abs(pixels - expected)
    return float(levels.max())


def bits(source: Source, batches: int = 4) -> bytes:
    arrays = [source.next().images for _ in range(batches)]
    return b"".join(array.asnumpy().tobytes() for array in arrays)


def sample(image: Pixels, rows: Floats, columns: Floats) -> Floats:
    """Levels between the centres of pixels, linear; the border is repeated outside."""
    planes = [
        map_coordinates(plane, [rows, columns], float, order=1, mode="nearest")
        for plane in np.moveaxis(image, 2, 0)
    ]
    return np.stack(planes, axis=2)


def bilinear(
    image: Pixels, height: int, width: int, scale: float | None = None
) -> Floats:
    """Resize with half-pixel centres and no antialiasing, rounded to levels as DALI does.

    With `scale` both axes keep exactly that scale about the centre, though the size is rounded.
    """

    def places(old: int, new: int) -> Floats:
        centred = np.arange(new) + 0.5 - new / 2
        factor = scale or new / old
        return centred / factor + old / 2 - 0.5

    rows = places(image.shape[0], height)
    columns = places(image.shape[1], width)
    grid = np.meshgrid(rows, columns, indexing="ij")
    levels = sample(image, *grid)
    return np.rint(levels)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Images of one grey level each."""
    levels = range(0, 138, 6)
    images = [png(np.full((20, 24, 3), level, np.uint8)) for level in levels]
    return pack(tmp_path_factory.mktemp("numbered"), images)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """JPEG of several shapes, with structure."""
    shapes = [(40, 60), (60, 40), (33, 47), (20, 20), (21, 80), (18, 19), (200, 151)]
    images = [*map(jpeg, rough_images(shapes))]
    return pack(tmp_path_factory.mktemp("photos"), images)


# --- which images -------------------------------------------------------------------------------


def test_a_rank_without_a_share_skips_those_steps(numbered: Data) -> None:
    """Also to the end of the run: prefetching then finds nothing more, and does not search on."""
    both = Segment(1, 0, 0, 3, 2)
    first_alone = Segment(2, 2, 12, 6, 1)
    segments = (both, first_alone)
    plan = Plan(2, numbered.train_samples, "mix", segments)
    order = sampling.TrainOrder(plan, SEEDS["shuffle"])
    stored = load_table(Path(numbered.path), "train")["label"]
    for rank, steps in ((0, 5), (1, 2)):
        source = build_train_source(numbered, plan, rank=rank, seeds=SEEDS)
        for step in range(1, steps + 1):
            images = order.batch(step, rank).images
            labels = labels_of(source.next())
            assert np.array_equal(labels, stored[images])
    with pytest.raises(StopIteration):
        source.next()


def test_an_evaluation_covers_every_image_once_each_time(numbered: Data) -> None:
    sources = [evaluation(numbered, 4, rank, 3) for rank in range(3)]
    for _ in range(2):
        batches = [source.next() for source in sources * 2]
        shares = [*map(labels_of, batches)]
        labels = np.concatenate(shares)
        assert sorted(labels) == [NOT_COUNTED, *range(23)]


# --- what is done to them -----------------------------------------------------------------------


def test_evaluation_equals_a_numpy_reference(tmp_path: Path) -> None:
    """Lossless images, shorter side to eval_resize_px, aspect kept, centre crop: within one grey
    level, the rounding after the resize. Where an odd number of rows is left over the crop lies
    lower, not higher. The last three are so long that they are not resized whole."""
    shapes = [(20, 20), (40, 60), (60, 40), (33, 47), (21, 80), (19, 18), (10, 12)]
    shapes += [(1, 3000), (3000, 2), (19, 100)]
    images = rough_images(shapes)
    data = pack_pixels(tmp_path, images)
    batch = evaluation(data, len(images)).next()
    assert sorted(labels_of(batch)) == [*range(len(images))]
    for image, pixels in shown(batch, data, images):
        sides = image.shape[:2]
        scale = 20 / min(sides)
        height, width = (round(side * scale) for side in sides)
        resized = bilinear(image, height, width, scale)
        top = (height - PX + 1) // 2
        left_px = (width - PX + 1) // 2
        rows = slice(top, top + PX)
        columns = slice(left_px, left_px + PX)
        crop = resized[rows, columns]
        assert difference(pixels, crop) <= 1.01


def test_training_windows_and_mirroring_are_those_that_sampling_decides(
    tmp_path: Path,
) -> None:
    heights = range(60, 105, 5)
    widths = range(150, 69, -9)
    images = [*map(smooth, range(9), heights, widths)]
    packed = pack_pixels(tmp_path, images)
    data = with_settings(packed, area=(0.1, 0.6))
    table = load_table(Path(data.path), "train")
    plan = plan_of(data, 9)
    order = sampling.TrainOrder(plan, SEEDS["shuffle"])
    source = training(data, 9)
    mirrored: list[int] = []
    for step in range(1, 5):
        numbers, positions, _ = order.batch(step, 0)
        rows = table[numbers]
        anchors, shapes = sampling.crop_windows(
            np.stack([rows["height"], rows["width"]], axis=1).astype("f4"),
            positions,
            SEEDS["augment"],
            area=data.area,
            aspect=data.aspect,
        )
        flips = sampling.flips(positions, SEEDS["flip"])
        mirrored += flips.tolist()
        batch = source.next()
        assert np.array_equal(labels_of(batch), rows["label"])
        for index, (image, pixels) in enumerate(shown(batch, data, images)):
            size = image.shape[:2]
            first = anchors[index] * size
            last = first + shapes[index] * size
            top, left_px = np.rint(first).astype(int)
            bottom, right = np.rint(last).astype(int)
            window = image[top:bottom, left_px:right]
            expected = bilinear(window, PX, PX)
            if flips[index]:
                expected = expected[:, ::-1]
            # A window may be rounded the other way at a tie: 3.4 levels a row at most.
            assert difference(pixels, expected) < 5
    assert 0 < sum(mirrored) < len(mirrored)


@pytest.mark.parametrize(("last_batch", "epoch"), [("mix", 5), ("pad", 8)])
def test_plain_epochs_show_stored_order_and_the_unmirrored_centre(
    tmp_path: Path, last_batch: str, epoch: int
) -> None:
    """Epochs 1 and 2 shuffled and augmented, from epoch 3 on neither, from its first image on.
    `epoch`: positions of one, of five images."""
    widths = range(40, 90, 10)
    images = [smooth(number, 40, width) for number, width in enumerate(widths)]
    data = with_settings(
        pack_pixels(tmp_path, images), no_augment_from_epoch=3, last_batch=last_batch
    )
    stored = load_table(Path(data.path), "train")["label"]
    plan = plan_of(data, 4)
    order = sampling.TrainOrder(plan, SEEDS["shuffle"])
    source = training(data)
    shuffled = augmented = 0
    for step in range(1, 12):
        batch = source.next()
        numbers, positions, _ = order.batch(step, 0)
        within = positions % epoch % 5
        plain = positions >= 2 * epoch
        expected = np.where(plain, within, numbers)
        assert np.array_equal(labels_of(batch), stored[expected])
        moved = numbers != within
        shuffled += moved[~plain].sum()
        for index, (image, pixels) in enumerate(shown(batch, data, images)):
            left_px = image.shape[1] // 2 - 16
            centre = image[4:36, left_px : left_px + 32]
            resized = bilinear(centre, PX, PX)
            is_centre = difference(pixels, resized) < 5
            assert is_centre or not plain[index]
            augmented += not is_centre
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
    """An image after nnabla's formulas, in a view of 16 px; float64."""

    def value(name: str, column: int, neutral: float) -> float:
        low, high = ranges.get(name, (neutral, neutral))
        share = u[column]
        if neutral == 1:
            logarithm = np.log(low) + share * np.log(high / low)
            return float(np.exp(logarithm))
        return float(low + share * (high - low))

    height, width = image.shape[:2]
    pad = PX * value("padding", 0, 0)
    degrees = value("rotation_deg", 1, 0)
    theta = np.radians(degrees)
    cos = np.cos(theta)
    sin = np.sin(theta)
    stretch = np.sqrt(value("aspect", 2, 1))
    scale = value("scale", 3, 1)
    scale_x = scale * stretch
    scale_y = scale / stretch
    padded = PX + 2 * pad
    room_x = padded * scale_x - PX
    room_y = padded * scale_y - PX
    centre_x = (u[4] * room_x + 8) / scale_x - pad
    centre_y = (u[5] * room_y + 8) / scale_y - pad
    offsets = np.mgrid[0:PX, 0:PX] - 7.5
    dy = offsets[0] / scale_y
    dx = offsets[1] / scale_x
    y = centre_y + sin * dx + cos * dy
    x = centre_x + cos * dx - sin * dy
    rows = y * height / PX - 0.5
    columns = x * width / PX - 0.5
    levels = sample(image, rows, columns) / 255
    channels = range(3)
    contrast = [value("contrast", 6 + channel, 1) for channel in channels]
    brightness = [value("brightness", 9 + channel, 0) for channel in channels]
    levels = (levels + brightness - 0.5) * contrast + 0.5
    size = levels.size
    start = int(u[13] * (size + 1))
    tile_part = tile[start : start + size]
    noise = tile_part.reshape(levels.shape)
    strength = value("noise", 12, 0)
    return 255.0 * (levels + noise * strength)


@pytest.mark.parametrize("names", [["noise"], [*OPERATIONS]])
def test_each_operation_equals_a_numpy_reference(
    tmp_path: Path, names: list[str]
) -> None:
    """Images of 255 levels from pixel to pixel, so a place is right to 1/1000 of a pixel."""
    sizes = [(16, 16), (20, 17), (24, 40), (37, 30), (50, 45)]
    images = rough_images(sizes)
    ranges = {name: OPERATIONS[name] for name in names}
    data = with_settings(
        pack_pixels(tmp_path, images),
        area=(1, 1),
        aspect=(0.1, 10),
        augmentation=ranges,
    )
    seed = SEEDS["operations"]
    tile = sampling.noise_tile(seed, PX).astype(float)
    assert abs(tile.std() - 1) < 0.05
    source = training(data, 5)
    for step in range(4):
        first = 5 * step
        positions = np.arange(first, first + 5)
        u = sampling.uniforms(positions, seed, 14)
        flips = sampling.flips(positions, SEEDS["flip"])
        batch = source.next()
        for index, (image, pixels) in enumerate(shown(batch, data, images)):
            expected = augmented_reference(image, u[index], ranges, tile)
            if flips[index]:
                expected = expected[:, ::-1]
            assert difference(pixels, expected) < 0.25


def test_operations_depend_on_the_place_alone_and_spare_plain_epochs(
    photos: Data,
) -> None:
    """The bits are the same on any number of ranks, and from a step in which a run resumes."""
    data = with_settings(photos, augmentation=OPERATIONS)
    one_rank = training(data, 6)
    ranks = [training(data, 2, rank, 3) for rank in range(3)]
    for _ in range(4):
        step = bits(one_rank, 1)
        shares = [bits(source, 1) for source in ranks]
        assert b"".join(shares) == step
    resumed = training(data, 6, first_step=4)
    assert bits(resumed, 1) == step
    decoded = []
    for augmented in (data, photos):
        plain = with_settings(augmented, no_augment_from_epoch=1)
        batch = training(plain, 7).next()
        decoded.append(pixels_of(batch, data))
    first, second = decoded
    # of rounding
    assert difference(first, second) < 0.51
    assert bits(evaluation(data)) == bits(evaluation(photos))


def images_and_twins() -> dict[str, tuple[bytes, bytes]]:
    """Images and their RGB twins. ImageNet holds grey and CMYK files; the others a user's own
    folder may hold."""
    pixels = smooth(3, 40, 40)
    plain = jpeg(pixels)
    pairs = {}
    for mode, kind in (("L", "JPEG"), ("P", "PNG"), ("1", "PNG"), ("CMYK", "JPEG")):
        image = Image.fromarray(pixels).convert(mode)
        twin = encode(image.convert("RGB"), "PNG")
        stored = encode(image, kind, quality=95)
        pairs[mode] = (stored, twin)
    marker = stored.index(b"\xff\xee")
    unmarked = stored[:marker] + stored[marker + 16 :]
    seen = Image.open(io.BytesIO(unmarked)).convert("RGB")  # as by docs/export.md
    pairs["CMYK without Adobe's marker"] = (unmarked, encode(seen, "PNG"))
    exif = Image.Exif()
    exif[0x0112] = 6
    pairs["rotated by EXIF"] = (jpeg(pixels, exif=exif), plain)
    # The magic number in a JPEG comment, aligned: RecordIO splits the record there.
    magic = struct.pack("<I", recordio.MAGIC)
    comment = b"ab" + magic + b"cdefgh" + magic
    length = struct.pack(">H", 2 + len(comment))
    marked = plain[:2] + b"\xff\xfe" + length + comment + plain[2:]
    assert recordio.is_split(recordio.encode(0, 0, marked))
    pairs["a record in parts"] = (marked, plain)
    return pairs


def test_any_kind_of_image_is_read_as_its_rgb_twin(tmp_path: Path) -> None:
    """Not inverted, not black, and pixels as stored: EXIF is not applied, as in the reference."""
    pairs = images_and_twins()
    images = [*chain.from_iterable(pairs.values())]
    data = with_settings(pack(tmp_path, images), augment=False, flip=False)
    for source in (training(data, len(images)), evaluation(data, len(images))):
        batch = source.next()
        decoded = pixels_of(batch, data)[np.argsort(labels_of(batch))]
        for kind, image, twin in zip(pairs, decoded[::2], decoded[1::2], strict=True):
            assert np.abs(image - twin).mean() < 12, kind
            assert image.std() > 10, kind


def test_a_record_that_does_not_decode_is_named_by_the_run(tmp_path: Path) -> None:
    images = rough_images([(30, 40)] * 6)
    data = pack(tmp_path, [*map(jpeg, images)])
    path = tmp_path / "set/train.rec"
    row = load_table(tmp_path / "set", "train")[4]
    with path.open("r+b") as file:
        file.seek(int(row["offset"]) + recordio.HEADER_BYTES)
        file.write(bytes(40))
    photo = f"class{row['label']:03}/image.JPEG"
    with refused(rf"/train\.rec: record 4, {photo}: an image .*--full`") as caught:
        bits(training(data, 2))
    assert "\n" not in str(caught.value)


def test_channels_last_are_the_same_images(photos: Data) -> None:
    data = with_settings(photos, augment=False)
    first = training(data, layout="NCHW").next().images
    last = training(data, layout="NHWC").next().images
    planes = first.asnumpy()
    channels_last = planes.transpose(0, 2, 3, 1)
    assert np.array_equal(channels_last, last.asnumpy())


# --- batches over time --------------------------------------------------------------------------


def test_a_batch_in_hand_does_not_change(photos: Data) -> None:
    source = training(photos)
    batches = [source.next().images for _ in range(4)]
    copies = [array.asnumpy() for array in batches]
    bits(source, 20)
    for array, copy in zip(batches, copies, strict=True):
        assert np.array_equal(array.asnumpy(), copy)
    assert not np.array_equal(copies[0], copies[1])


def test_the_same_seeds_give_the_same_bits_and_every_seed_has_its_effect(
    photos: Data,
) -> None:
    noise = {"noise": (0.1, 0.1)}
    data = with_settings(photos, augmentation=noise)
    first = bits(training(data))
    faster = with_settings(data, decode_threads=3, prefetch=4)
    assert bits(training(faster)) == first
    for stream in SEEDS:
        seeds = SEEDS | {stream: 99}
        assert bits(training(data, seeds=seeds)) != first


@pytest.mark.parametrize("build", [training, evaluation])
@pytest.mark.parametrize("device_id", [None, 0])
def test_the_hardware_decoder_gets_nearly_all_images(
    photos: Data, monkeypatch: pytest.MonkeyPatch, build: Any, device_id: int | None
) -> None:
    """DALI checks the names of arguments when a graph is made; building it would need a GPU."""
    outputs: list[Any] = []
    monkeypatch.setattr(Pipeline, "build", lambda _: None)
    monkeypatch.setattr(
        Pipeline, "set_outputs", lambda _, *nodes: outputs.extend(nodes)
    )
    build(photos, device_id=device_id)
    operation = outputs[0].source
    while "decoders__" not in str(operation.spec):
        operation = operation.inputs[0].source
    spec = str(operation.spec).splitlines()
    lines = {line.strip() for line in spec}
    hints = {
        "device: mixed",
        "hw_decoder_load: 0.990000",
        "preallocate_width_hint: 5980",
        "preallocate_height_hint: 6430",
    }
    if device_id is None:
        assert not lines & hints
    else:
        assert lines >= hints


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
    options = decoder_options(Data(**settings), device_id=0)
    assert options["hw_decoder_load"] == load
