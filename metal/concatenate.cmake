# SPDX-License-Identifier: MIT
# Puts the kernels' files behind one another, without their own #include lines.
# cmake -DOUT=a.metal -DIN=file,file,... -P concatenate.cmake
cmake_minimum_required(VERSION 3.22)
string(REPLACE "," ";" IN "${IN}")
set(ALL "")
foreach(file ${IN})
    file(READ ${file} text)
    string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
    string(APPEND ALL "${text}\n")
endforeach()
file(WRITE ${OUT} "${ALL}")
