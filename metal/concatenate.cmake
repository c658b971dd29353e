# SPDX-License-Identifier: MIT
# Joins the kernels' files into one source, without their own #include lines.
# Usage: cmake -DOUT=a.metal -DIN=file,file,... -P concatenate.cmake
cmake_minimum_required(VERSION 3.22)
string(REPLACE "," ";" IN "${IN}")
set(ALL "")
foreach(file ${IN})
    file(READ ${file} text)
    string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
    string(APPEND ALL "${text}\n")
endforeach()
file(WRITE ${OUT} "${ALL}")
