# SPDX-License-Identifier: MIT
"""Makes images to compare with Pillow: plain and odd ones of each format that it and qwenvit read.

make_images.py FOLDER [path/to/image_write]      writes them all

MADE maps each name to a function that returns the file's bytes. image_write adds those that
FFmpeg's encoders make.
"""

import io
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

from PIL import Image, ImageDraw, PngImagePlugin

MADE = {}


# ---- what they show ------------------------------------------------------------------------------


def scene(width=97, height=61, mode="RGB"):
    """Returns a scene with slopes, edges and noise, so that smooth chroma, rounding and clipping
    all show."""
    rng = random.Random(width * 1009 + height)
    small = Image.frombytes("RGB", (8, 6), bytes(rng.randrange(256) for _ in range(8 * 6 * 3)))
    image = small.resize((width, height), Image.BICUBIC)
    draw = ImageDraw.Draw(image)
    draw.ellipse((width // 4, height // 4, width // 2, height - 1), fill=(255, 0, 0))
    draw.rectangle((width // 2, 0, width - 1, height // 3), fill=(0, 40, 255))
    draw.line((0, height, width, 0), fill=(0, 255, 0))
    noise = Image.frombytes("RGB", image.size, bytes(rng.randrange(256) for _ in range(width * height * 3)))
    image = Image.blend(image, noise, 0.1)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
        return image if mode == "RGBA" else image.convert("LA")
    return image.convert(mode)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def add(name, make):
    assert name not in MADE
    MADE[name] = make


def save(name, kind, image=scene, **options):
    add(name, lambda: saved(image(), kind, **options))


def of(mode, *size):
    return lambda: scene(*size, mode=mode)


def exif_with(kind, count, values, order=">"):
    """Returns EXIF whose only entry is an orientation of a type and a count, with the bytes of its values."""
    mark = b"MM\0*" if order == ">" else b"II*\0"
    place, values = (values.ljust(4, b"\0"), b"") if len(values) <= 4 else (struct.pack(order + "I", 26), values)
    entry = struct.pack(order + "HHI", 274, kind, count) + place
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4) + values


def exif_of(orientation, order=">"):
    return exif_with(3, 1, struct.pack(order + "H", orientation), order)


# Orientations of many types and counts: the type's number, the count, and how struct packs the values.
ORIENTATIONS = {
    "byte": (1, 1, "B", 6), "byte-2": (1, 2, "BB", 6, 6), "ascii": (2, 2, "cB", b"6", 0), "short": (3, 1, "H", 5),
    "short-2": (3, 2, "HH", 8, 1), "short-3": (3, 3, "HHH", 6, 1, 1), "short-0": (3, 0, "H", 6),
    "short-262": (3, 1, "H", 262), "long": (4, 1, "I", 8), "long-2": (4, 2, "II", 6, 3), "ratio": (5, 1, "II", 6, 1),
    "ratio-12": (5, 2, "IIII", 12, 2, 1, 1), "ratio-half": (5, 1, "II", 13, 2), "ratio-nan": (5, 1, "II", 6, 0),
    "sbyte": (6, 1, "b", 7), "undefined": (7, 1, "B", 6), "sshort": (8, 1, "h", 6), "sshort-minus": (8, 1, "h", -6),
    "slong": (9, 1, "i", 2), "slong-2": (9, 2, "ii", 4, 9), "sratio": (10, 1, "ii", -6, -1), "float": (11, 1, "f", 6.0),
    "float-part": (11, 1, "f", 6.5), "double": (12, 1, "d", 3.0), "double-nan": (12, 1, "d", float("nan")),
    "ifd": (13, 1, "I", 6), "long8": (16, 1, "Q", 6), "long8-large": (16, 1, "Q", (6 << 32) + 6), "type-0": (0, 1, "H", 6),
    "type-17": (17, 1, "H", 6), "cut": (3, 40, "HHH", 6, 6, 6),
}


def xmp_of(orientation):
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
        f'tiff:Orientation="{orientation}"/></x:xmpmeta>'
    ).encode()


# ---- JPEG ----------------------------------------------------------------------------------------


def segment(kind, data):
    return bytes((0xFF, kind)) + struct.pack(">H", len(data) + 2) + data


def patched(data, old, new):
    assert data.count(old) == 1 and len(old) == len(new)
    return data.replace(old, new)


def inserted(data, *segments):
    return data[:2] + b"".join(segments) + data[2:]


def without(data, kind):
    """Returns the file without segments of this marker."""
    out, at = data[:2], 2
    while data[at + 1] != 0xDA:
        length = 2 + struct.unpack_from(">H", data, at + 2)[0]
        out += b"" if data[at + 1] == kind else data[at : at + length]
        at += length
    return out + data[at:]


def cmyk(**options):
    return saved(scene(mode="CMYK"), "JPEG", **options)


ADOBE = b"Adobe\0\x64\0\0\0\0"

for name, options in {
    "420": {}, "422": {"subsampling": "4:2:2"}, "444": {"subsampling": "4:4:4"}, "rough": {"quality": 3},
    "fine": {"quality": 100, "subsampling": "4:4:4"}, "progressive": {"progressive": True},
    "progressive-444": {"progressive": True, "subsampling": "4:4:4"}, "optimized": {"optimize": True},
    "restarts": {"restart_marker_blocks": 3}, "restart-rows": {"restart_marker_rows": 1},
    "rgb": {"keep_rgb": True}, "icc": {"icc_profile": b"no profile" * 20000}, "comment": {"comment": b"\xff\xd9 no end"},
}.items():
    save(f"{name}.jpg", "JPEG", **options)
save("gray.jpg", "JPEG", of("L"))
save("gray-progressive.jpg", "JPEG", of("L"), progressive=True)
save("large.jpg", "JPEG", of("RGB", 1024, 768), quality=90)
save("cmyk.jpg", "JPEG", of("CMYK"))
save("cmyk-progressive.jpg", "JPEG", of("CMYK"), progressive=True, quality=100)
for width, height in ((1, 1), (2, 3), (7, 5), (16, 16), (17, 9), (33, 15), (3, 64)):
    save(f"{width}x{height}.jpg", "JPEG", of("RGB", width, height))
for i in range(1, 10):
    save(f"turned-{i}.jpg", "JPEG", exif=exif_of(i))
save("turned-ii.jpg", "JPEG", exif=exif_of(8, "<"))
for name, (kind, count, form, *values) in ORIENTATIONS.items():
    for order in "<>":
        exif = exif_with(kind, count, struct.pack(order + form, *values), order)
        order = "ii" if order == "<" else "mm"
        save(f"turned-{name}-{order}.jpg", "JPEG", exif=exif)
        save(f"turned-{name}-{order}.png", "PNG", of("L", 17, 9), exif=exif)
        if name not in ("short-0", "cut"):  # FFmpeg's decoder of WebP calls these files damaged
            save(f"turned-{name}-{order}.webp", "WEBP", of("RGB", 17, 9), lossless=True, exif=exif)
save("byte-before-xmp.jpg", "JPEG", xmp=xmp_of(6), exif=exif_with(1, 1, b"\3"))
save("turned-xmp.jpg", "JPEG", xmp=xmp_of(6))
save("exif-before-xmp.jpg", "JPEG", xmp=xmp_of(6), exif=exif_of(3))
add("no-adobe.jpg", lambda: without(cmyk(), 0xEE))
add("ycck.jpg", lambda: patched(cmyk(), ADOBE + b"\0", ADOBE + b"\2"))
add("adobe-rgb.jpg", lambda: inserted(without(saved(scene(), "JPEG", subsampling=0), 0xE0), segment(0xEE, ADOBE + b"\0")))
add("adobe-ycc.jpg", lambda: inserted(saved(scene(), "JPEG"), segment(0xEE, ADOBE + b"\1")))
add("padded.jpg", lambda: inserted(saved(scene(), "JPEG"), b"\xff" * 7))
# 680 frames of MP3 in the metadata, each of 96 bytes
add("mp3-inside.jpg", lambda: inserted(saved(scene(), "JPEG"), segment(0xEF, (b"\xff\xfb\x14\0" + bytes(92)) * 680)))
add("garbage-behind.jpg", lambda: saved(scene(), "JPEG") + bytes(5000))
add("two.mpo.jpg", lambda: saved(scene(), "MPO", save_all=True, append_images=[scene(64, 48)]))

# ---- PNG -----------------------------------------------------------------------------------------


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png16(channels, colour, width=37, height=23, extra=b""):
    """Returns a PNG of 16 bits, which Pillow writes only for gray."""
    rng = random.Random(channels)
    rows = b"".join(
        b"\0" + b"".join(struct.pack(">H", rng.choice((rng.randrange(65536), rng.randrange(600))))
                         for _ in range(width * channels))
        for _ in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def with_text(orientation):
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp_of(orientation).decode())
    return saved(scene(), "PNG", pnginfo=info)


for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
    save(f"{mode.lower()}.png", "PNG", of(mode))
save("p-2-bits.png", "PNG", lambda: scene().quantize(4), bits=2)
save("p-transparent.png", "PNG", of("P"), transparency=bytes(range(256)))
save("rgb-transparent.png", "PNG", transparency=(255, 0, 0))
add("gray16.png", lambda: png16(1, 0))
add("rgb16.png", lambda: png16(3, 2))
add("la16.png", lambda: png16(2, 4))
add("rgba16.png", lambda: png16(4, 6))
save("turned.png", "PNG", exif=exif_of(6))
save("turned-gray.png", "PNG", of("L"), exif=exif_of(5, "<"))
add("turned-late.png", lambda: saved(scene(), "PNG")[:-12] + chunk(b"eXIf", exif_of(8)[6:]) + chunk(b"IEND", b""))
add("turned-xmp.png", lambda: with_text(3))
save("moving.png", "PNG", of("RGBA"), save_all=True, append_images=[scene(97, 61, "RGBA").rotate(90)])

# ---- TIFF ----------------------------------------------------------------------------------------


def tiff16(order, channels, photometric, width=37, height=23):
    """Returns a TIFF of 16 bits per channel, in one strip."""
    rng = random.Random(channels)
    data = b"".join(struct.pack(order + "H", rng.randrange(65536)) for _ in range(width * height * channels))
    tags = [(256, width), (257, height), (258, 16), (259, 1), (262, photometric), (273, 512), (277, channels),
            (278, height), (279, len(data))]
    head = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(order + "IH", 8, len(tags))
    for tag, value in tags:
        if tag == 258 and channels > 1:
            head += struct.pack(order + "HHII", tag, 3, channels, 480)
        else:
            head += struct.pack(order + "HHII", tag, 4, 1, value)
    head = (head + bytes(4)).ljust(480, b"\0") + struct.pack(order + "H", 16) * channels
    return head.ljust(512, b"\0") + data


for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK"):
    save(f"{mode.lower()}.tif", "TIFF", of(mode))
for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
    save(f"{compression}.tif", "TIFF", compression=compression)
save("cmyk-lzw.tif", "TIFF", of("CMYK"), compression="tiff_lzw")
save("ycbcr.tif", "TIFF", of("YCbCr"))
save("ycbcr-wide.tif", "TIFF", of("YCbCr", 512, 256))
save("ycbcr-lzw.tif", "TIFF", of("YCbCr"), compression="tiff_lzw")
save("gray-jpeg.tif", "TIFF", of("L"), compression="jpeg")
save("turned.tif", "TIFF", tiffinfo={274: 6})
add("gray16.tif", lambda: tiff16("<", 1, 1))
add("gray16-be.tif", lambda: tiff16(">", 1, 1))
add("rgb16.tif", lambda: tiff16("<", 3, 2))
add("rgb16-be.tif", lambda: tiff16(">", 3, 2))

# ---- others --------------------------------------------------------------------------------------


def pnm(magic, width, height, most, channels):
    rng = random.Random(most)
    size = "H" if most > 255 else "B"
    return f"{magic}\n{width} {height}\n{most}\n".encode() + b"".join(
        struct.pack(">" + size, rng.randrange(most + 1)) for _ in range(width * height * channels)
    )


save("lossy.webp", "WEBP")
save("odd.webp", "WEBP", of("RGB", 33, 15), quality=20)
save("lossless.webp", "WEBP", lossless=True)
save("alpha.webp", "WEBP", of("RGBA"))
save("turned.webp", "WEBP", exif=exif_of(6))
save("turned-xmp.webp", "WEBP", lossless=True, xmp=xmp_of(8))
for mode in ("1", "L", "P", "RGB", "RGBA"):
    save(f"{mode.lower()}.bmp", "BMP", of(mode))
save("still.gif", "GIF", of("P"))
save("transparent.gif", "GIF", of("P"), transparency=7)
save("moving.gif", "GIF", save_all=True, append_images=[scene().rotate(180)], duration=100)
save("1.pbm", "PPM", of("1"))
save("gray.pgm", "PPM", of("L"))
save("rgb.ppm", "PPM")
add("gray16.pgm", lambda: pnm("P5", 37, 23, 65535, 1))
add("rgb16.ppm", lambda: pnm("P6", 37, 23, 65535, 3))
add("rgb10.ppm", lambda: pnm("P6", 37, 23, 1023, 3))
add("gray-100.pgm", lambda: pnm("P5", 37, 23, 100, 1))
save("rgb.jp2", "JPEG2000")
save("gray.jp2", "JPEG2000", of("L"))
save("alpha.jp2", "JPEG2000", of("RGBA"))
save("irreversible.jp2", "JPEG2000", irreversible=True)
add("gray16.jp2", lambda: saved(Image.open(io.BytesIO(png16(1, 0, 64, 64))), "JPEG2000"))
save("rgb.qoi", "QOI")
save("420.avif", "AVIF")
save("444.avif", "AVIF", subsampling="4:4:4", quality=100)
save("422.avif", "AVIF", subsampling="4:2:2")
save("gray.avif", "AVIF", of("L"))
save("limited.avif", "AVIF", range="limited")
save("alpha.avif", "AVIF", of("RGBA"))
save("turned.avif", "AVIF", exif=exif_of(6))


# The scenes that FFmpeg encodes, by image_write: the encoder and the pixel format.
BY_FFMPEG = {
    f"ffmpeg-{pixels}.{ending}": (encoder, pixels)
    for ending, encoder, formats in (
        ("jpg", "mjpeg", ("yuvj420p", "yuvj422p", "yuvj444p")),
        ("png", "png", ("rgb24", "rgba", "gray", "ya8", "gray16be", "rgb48be", "rgba64be")),
        ("tif", "tiff", ("rgb24", "rgba", "gray", "gray16le", "rgb48le", "yuv420p", "yuv422p", "yuv444p")),
        ("bmp", "bmp", ("bgr24", "bgra", "gray", "rgb565le")),
        ("ppm", "ppm", ("rgb24", "rgb48be")),
        ("pgm", "pgm", ("gray", "gray16be")),
        ("qoi", "qoi", ("rgb24", "rgba")),
        ("j2k", "jpeg2000", ("rgb24", "gray")),
    )
    for pixels in formats
}


def by_ffmpeg(tool, name):
    """Returns the file's bytes; None if this FFmpeg lacks the encoder, or cannot encode these
    pixels by it."""
    image = scene()
    done = subprocess.run([tool, *BY_FFMPEG[name], *map(str, image.size)], input=image.tobytes(), stdout=subprocess.PIPE)
    assert done.returncode in (0, 4), name
    return done.stdout or None


def write_all(folder, tool=None):
    """Returns the paths of all that can be made. tool: image_write."""
    made = {name: make() for name, make in MADE.items()}
    made.update({name: by_ffmpeg(tool, name) for name in BY_FFMPEG if tool})
    for name in made:
        if made[name]:
            Path(folder, name).write_bytes(made[name])
    return [Path(folder, name) for name in made if made[name]]


def main():
    print(len(write_all(*sys.argv[1:3])), "files")


if __name__ == "__main__":
    main()
