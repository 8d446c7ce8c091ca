"""Where the images of a data set lie: in tar and zip archives, or in folders.

Archives are indexed from their headers alone, and an image is then read by its place:
nothing is unpacked to disk, and no name from an archive becomes a path. The class of
an image is the name of its folder, or of the class tar that it lies in.
"""

import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp")
_SPLIT_FOLDERS = {"train": {"train"}, "validation": {"val", "valid", "validation"}}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
_BLOCK = 512  # bytes: tar's unit
_NO_CLASS = (".", "__MACOSX")  # folders that programs make beside the classes
_ZIP_HEADER = struct.Struct("<4s22xHH")  # of a member; lengths of its name and extra


class ZipMember(NamedTuple):
    """How a zip archive holds an image.

    Attributes:
      deflated: whether it is compressed.
      size: bytes of the image.
      crc: CRC-32 of the image.
    """

    deflated: bool
    size: int
    crc: int


class Image(NamedTuple):
    """An image and its place.

    Attributes:
      name: of its file, without folders.
      folder: its class; in a flat archive or folder whatever it lies in.
      path: the file on disk.
      offset: its first byte there; of a zip member, of the member's header.
      length: bytes that it takes there.
      member: of a zip archive, if it lies in one.
    """

    name: str
    folder: str
    path: str
    offset: int
    length: int
    member: ZipMember | None = None

    @property
    def size(self) -> int:
        """Bytes of the image, however it is packed."""
        return self.member.size if self.member else self.length


class Source(NamedTuple):
    """What an archive or folder holds.

    Attributes:
      images: all of them.
      others: number of other files.
      empty: class tars and class folders without images.
    """

    images: list[Image]
    others: int
    empty: list[str]


def archive(path: str, split: str, map_: Callable[..., Iterator[Any]] = map) -> Source:
    """The images of a tar or zip archive.

    It holds a tar per class, or class folders at any depth, or the images alone. If
    some lie below a folder that is named like the split (train, val), only those count,
    and the class is the folder below that; otherwise it is the folder they are in.

    Args:
      path: of the archive.
      split: "train" or "validation".
      map_: calls a function of this module on each of many items, perhaps in other
        processes.

    Raises:
      ValueError: the archive cannot be read, is compressed as a whole, cut off, or of
        another kind.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            magic = file.read(4)
            size = os.fstat(file.fileno()).st_size
        kind = _COMPRESSED.get(magic[:2])
        if kind:
            raise ValueError(
                f"{path} must be an uncompressed archive, but is compressed with "
                f"{kind}: unpack it to a .tar first, since images are read by place"
            )
        empty = []
        if magic[:2] == b"PK":
            images, others, folders = _zip(path)
        else:
            images, others, folders, tars = _tar(path, 0, size, "")
            each = map_(_class_tar, [(path, *one) for one in tars])
            for (name, *_), (inner, inner_others) in zip(tars, each):
                images += inner
                others += inner_others
                empty += [] if inner else [f"{name}.tar"]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    marks = _SPLIT_FOLDERS[split]
    marked = [image for image in images if not marks.isdisjoint(_parts(image.folder))]
    others += len(images) - len(marked) if marked else 0
    images = marked or images
    places = {folder: _class_place(folder, marks) for folder in _folders(images)}
    empty += _empty(folders, set(places.values()))
    images = [
        image._replace(folder="".join(places[image.folder][-1:])) for image in images
    ]
    return Source(images, others, empty)


def folder(path: str) -> Source:
    """The images of a folder; those in folders in it have the first one as class.

    Raises:
      ValueError: the folder cannot be read, or an image is no file.
    """
    images, others, empty = [], 0, []

    def walk(place: str, parent: str) -> None:
        nonlocal others
        with os.scandir(place) as entries:
            for entry in entries:
                # Sets are often links into a big folder elsewhere: follow them.
                if entry.is_dir():
                    before = len(images)
                    walk(entry.path, parent or entry.name)
                    held = len(images) > before or entry.name.startswith(_NO_CLASS)
                    empty.extend([] if held or parent else [_text(entry.name)])
                elif _is_image(entry.name):
                    status = entry.stat()
                    if not stat.S_ISREG(status.st_mode):
                        raise ValueError(
                            f"{_text(entry.path)} must be a file, but is a pipe, "
                            "socket or device: remove it"
                        )
                    name, of = _text(entry.name), _text(parent)
                    images.append(Image(name, of, entry.path, 0, status.st_size))
                else:
                    others += 1

    try:
        walk(path, "")
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return Source(images, others, sorted(empty))


def will_read(image: Image) -> None:
    """Has the image fetched from disk meanwhile."""
    try:
        descriptor = os.open(image.path, os.O_RDONLY)
    except OSError:
        return  # `read` says so
    try:
        os.posix_fadvise(descriptor, image.offset, image.length, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def read(image: Image) -> bytes:
    """The bytes of an image.

    Raises:
      OSError: its file cannot be read.
      ValueError: the file ends before, or the zip member is broken or has another
        checksum.
    """
    descriptor = os.open(image.path, os.O_RDONLY)
    try:
        start = image.offset
        if image.member:
            header = os.pread(descriptor, _ZIP_HEADER.size, start)
            if header[:4] != b"PK\3\4" or len(header) < _ZIP_HEADER.size:
                raise ValueError("broken zip member: no header at its place")
            start += _ZIP_HEADER.size + sum(_ZIP_HEADER.unpack(header)[1:])
        data = os.pread(descriptor, image.length, start)
    finally:
        os.close(descriptor)
    if len(data) != image.length:
        raise ValueError(f"cut off: {len(data):,} of {image.length:,} bytes are there")
    return _unpacked(data, image.member) if image.member else data


def _unpacked(data: bytes, member: ZipMember) -> bytes:
    """The bytes of an image from those of its zip member."""
    if member.deflated:
        try:
            # One byte more than is said shows that there are more, whatever they are.
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
        except zlib.error as error:
            raise ValueError(f"broken zip member: {error}") from error
    if len(data) != member.size or zlib.crc32(data) != member.crc:
        raise ValueError("broken zip member: its checksum (CRC-32) does not fit")
    return data


def _class_tar(place: tuple[str, str, int, int]) -> tuple[list[Image], int]:
    """The images of a tar in a tar: path, class, first byte and the byte behind it."""
    path, of, start, end = place
    images, others, _, tars = _tar(path, start, end, of)
    return images, others + len(tars)


def _tar(
    path: str, start: int, end: int, folder: str
) -> tuple[list[Image], int, set[str], list[tuple[str, int, int]]]:
    """Images, number of other files, folders, and tars (name, first byte, end).

    Args:
      path: the file that holds it.
      start: its first byte.
      end: the byte behind it.
      folder: the images' folder; if empty, it comes from their names.
    """
    images, others, folders, tars = [], 0, set(), []
    file = open(path, "rb", buffering=0)
    try:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(start)
        with file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # it would keep a kilobyte for each
                first, behind = member.offset_data, member.offset_data + member.size
                name = _text(member.name)
                if behind > end:
                    raise tarfile.ReadError(f"{name} is cut off")
                parent, _, base = name.rpartition("/")
                if member.isdir():
                    folders.add(name)
                    continue
                if name.lower().endswith(".tar"):
                    tars.append((name[: -len(".tar")], first, behind))
                elif not _is_image(name):
                    folders.add(parent)
                    others += 1
                elif not member.isreg() or member.issparse():
                    raise ValueError(
                        f"{path}: {name} must be a file, but is a link or sparse: pack "
                        "it again with tar --hard-dereference --dereference"
                    )
                else:
                    of = folder or parent
                    images.append(Image(base, of, path, first, member.size))
            # tarfile takes a broken header, or none, for the end of the archive.
            if os.pread(file.fileno(), _BLOCK, tar.offset) != bytes(_BLOCK):
                raise tarfile.ReadError(f"it ends at byte {tar.offset:,}")
    except tarfile.TarError as error:
        what = f"{path}, the tar of {folder}," if folder else path
        raise ValueError(
            f"{what} must be a complete tar or zip archive, but is cut off, broken or "
            f"something else ({error}): compare its size and checksum with the "
            "publisher's, and download it again"
        ) from error
    return images, others, folders, tars


def _zip(path: str) -> tuple[list[Image], int, set[str]]:
    """Images, number of other files, and folders of a zip archive."""
    images, others, folders = [], 0, set()
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} must be a complete zip archive, but is cut off or broken "
            f"({error}): download it again"
        ) from error
    for member in members:
        name = member.filename
        if name.lower().endswith(".tar"):
            raise ValueError(
                f"{path} must hold images, but holds {name}: unpack the zip, and name "
                "the tar archive"
            )
        parent, _, base = name.rpartition("/")
        if member.is_dir() or not _is_image(name):
            folders.add(parent)
            others += not member.is_dir()
            continue
        packings = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if member.compress_type not in packings or member.flag_bits & 1:
            raise ValueError(
                f"{path}: {name} must be stored or deflated, without a password: "
                "unpack the archive and use the folder"
            )
        packed = ZipMember(
            member.compress_type == zipfile.ZIP_DEFLATED, member.file_size, member.CRC
        )
        place = member.header_offset, member.compress_size
        images.append(Image(base, parent, path, *place, packed))
    return images, others, folders


def _folders(images: list[Image]) -> set[str]:
    return {image.folder for image in images}


def _class_place(folder: str, marks: set[str]) -> tuple[str, ...]:
    """The folders down to the class of images in a folder; none without a class."""
    parts = _parts(folder)
    below = next((at + 1 for at, part in enumerate(parts) if part in marks), None)
    if below is None:
        return parts
    return parts[: below + 1] if below < len(parts) else ()


def _empty(folders: set[str], places: set[tuple[str, ...]]) -> list[str]:
    """Which folders lie beside those of the classes, but hold no images.

    Args:
      folders: all there are, or those without images alone.
      places: of the classes, see `_class_place`.
    """
    beside = {place[:-1] for place in places if place}
    holding = {place[:depth] for place in places for depth in range(1, len(place) + 1)}
    found = set()
    for parts in map(_parts, folders):
        for depth, part in enumerate(parts):
            place = parts[: depth + 1]
            if parts[:depth] in beside and place not in holding:
                found |= set() if part.startswith(_NO_CLASS) else {"/".join(place)}
    return sorted(found)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _is_image(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.lower().endswith(_SUFFIXES) and not base.startswith(".")


def _text(name: str) -> str:
    """A name without the bytes that are no UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
