# SPDX-License-Identifier: MIT
"""Makes odd files, with the kind that qwenvit must recognise in each.

ODD maps each name to the file's bytes and what they are: UNKNOWN, "image", an image with a remark, or the name
of a kind of image that is not read."""

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile

from make_images import inserted, saved, scene, segment
from PIL import Image

UNKNOWN = "not a clip or image of a known format"
MORE = "only its first JPEG is read"
JPEG = saved(scene(), "JPEG")
SMALL = saved(scene(32, 24), "JPEG")
SAME = saved(scene().rotate(180), "JPEG", progressive=True, restart_marker_blocks=3)
MP3 = (b"\xff\xfb\x14\0" + bytes(92)) * 680  # as FFmpeg's probe sees it: frames of 96 bytes


def zip_of(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def tar_of(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("000.jpg")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def pdf_of(*images):
    streams = (b"%d 0 obj<</Subtype/Image/Filter/DCTDecode>>stream\n" % (i + 1) + image + b"\nendstream endobj\n"
               for i, image in enumerate(images))
    return b"%PDF-1.4\n" + b"".join(streams) + b"%%EOF\n"


def start_codes(seed):
    """Returns bytes in which start codes of MPEG-4 are frequent, as in tables of small numbers."""
    often = [0, 0, 0, 1, 0x67, 0x68, 0x65, 0x41, 6, 0x26, 0x40, 0x42, 0x44, 0xB3, 0xB6, 0xBA]
    return bytes(random.Random(seed).choices(often, k=20000))


ODD = {
    "one.pdf": (pdf_of(JPEG), UNKNOWN),
    "two.pdf": (pdf_of(JPEG, SMALL), UNKNOWN),
    "office.docx": (zip_of(("[Content_Types].xml", "<Types/>"), ("word/media/1.jpeg", JPEG)), UNKNOWN),
    "stored.zip": (zip_of(("a.txt", "text"), ("a.jpg", JPEG)), UNKNOWN),
    "tar.bin": (tar_of(JPEG), UNKNOWN),
    "mail.eml": (b"From: a\nTo: b\nContent-Type: image/jpeg\nContent-Transfer-Encoding: binary\n\n" + JPEG, UNKNOWN),
    "figure.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 97 61\n" + JPEG + b"\nshowpage\n", UNKNOWN),
    "page.html": (b"<!DOCTYPE html><title>404</title>" + JPEG, UNKNOWN),
    "newline.jpg": (b"\n" + JPEG, UNKNOWN),
    "bom.jpg": (b"\xef\xbb\xbf" + JPEG, UNKNOWN),
    "zeros.jpg": (bytes(512) + JPEG, UNKNOWN),
    "codes.bin": (start_codes(2005), UNKNOWN),
    "dv.bin": ((b"\x1f\x07\0\x3f" + bytes(76)) * 300, UNKNOWN),
    "data.json": (json.dumps([{"id": i, "text": "x" * 20} for i in range(500)]).encode(), UNKNOWN),
    "page.svgz": (gzip.compress(b"<svg xmlns='http://www.w3.org/2000/svg'/>", mtime=0), UNKNOWN),
    "noise.bin": (random.Random(4).randbytes(4000), UNKNOWN),
    "still.jpg": (JPEG, "image"),
    "preview.jpg": (JPEG + SMALL, "image"),
    "apart.jpg": (JPEG + b"\0" + SAME, "image"),
    "half.jpg": (JPEG + SAME[: len(SAME) // 2], "image"),
    "clip.mjpeg": (JPEG + SAME + JPEG, MORE),
    "stereo.mpo": (saved(scene(), "MPO", save_all=True, append_images=[scene()]), MORE),
    "mp3.jpg": (inserted(JPEG, segment(0xEF, MP3)), "image"),
    "mp3.tif": (saved(scene(), "TIFF", tiffinfo={37500: MP3}), "image"),
    "mp3.webp": (saved(scene(), "WEBP", exif=b"Exif\0\0II*\0" + MP3), "image"),
    "mp3.png": (saved(scene(), "PNG", exif=b"Exif\0\0II*\0" + MP3), "image"),
    "mp3.bmp": (saved(Image.frombytes("L", (96, 680), MP3), "BMP"), "image"),
    "note.ppm": (b"P6 2 2 255\n" + bytes(12), "image"),
    "big.tif": (saved(scene(), "TIFF", big_tiff=True), "BigTIFF"),
    "big-endian.tif": (b"MM\0+\0\x08\0\0" + struct.pack(">Q", 16) + bytes(100), "BigTIFF"),
    "colour.tga": (saved(scene(), "TGA"), "TGA"),
    "gray.tga": (saved(scene(mode="L"), "TGA", compression="tga_rle"), "TGA"),
    "palette.tga": (saved(scene(mode="P"), "TGA"), "TGA"),
    "icon.icns": (saved(scene(64, 64), "ICNS"), "ICNS"),
    "image.im": (b"Image type: RGB image\r\nImage size (x*y): 97*61\r\n" + bytes(200), "IM"),
}
