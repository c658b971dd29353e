# SPDX-License-Identifier: MIT
# Writes OUT, a header with the bytes of the file IN as `static const char NAME[]`, which ends in 0.
# (Bytes, not a string: those may have 4095 characters at most.)
# cmake -DIN=a.txt -DOUT=a.h -DNAME=a -P embed.cmake
cmake_minimum_required(VERSION 3.22)
file(READ ${IN} HEX HEX)
string(REGEX REPLACE "(................................)" "\\1\n" HEX "${HEX}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," HEX "${HEX}")
file(WRITE ${OUT} "static const char ${NAME}[] = {\n${HEX}0\n};\n")
